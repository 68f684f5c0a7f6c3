# shellcheck shell=bash
# What the launch scripts share; they source it.

fail() {
  echo "error: $*" >&2
  exit 2
}

# The comment at the head of the script that sources this.
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
