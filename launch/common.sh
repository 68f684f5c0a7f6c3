# shellcheck shell=bash
# Functions shared by the launch scripts, which source this file.

fail() {
  echo "error: $*" >&2
  exit 2
}

# Prints the comment at the top of the script that sources this file.
usage() {
  sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p;}' "$0"
}

# Prints a command, quoted where a shell needs it, and runs it unless `dry_run` is set.
go() {
  local word
  for word; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word=${word@Q}
    printf '%s ' "$word"
  done
  echo
  [ -n "${dry_run-}" ] || "$@"
}
