"""Scripts for bash, zsh and fish that complete commands, flags and values without Python."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class CompletedFlag(NamedTuple):
    """A flag of a command, for completion.

    Attributes:
        name: the flag with its dashes, such as "--optimizer.learning_rate".
        values: values to offer.
        is_closed: whether the flag takes no other values; otherwise, names of files are offered,
            too.
        is_boolean: whether the flag may stand without a value.
        description: a short description.
    """

    name: str
    values: tuple[str, ...]
    is_closed: bool
    is_boolean: bool
    description: str


class CompletedCommand(NamedTuple):
    """A command, for completion.

    Attributes:
        name: the name of the command, such as "pretrain".
        description: a short description.
        flags: its flags.
        words: the values of its first argument; (): it has none, or any value is allowed.
    """

    name: str
    description: str
    flags: list[CompletedFlag]
    words: tuple[str, ...] = ()


_BASH = """\
# Completion of bertjax in bash. For the current shell: eval "$(bertjax completion bash)". For all:
#   bertjax completion bash > ~/.local/share/bash-completion/completions/bertjax
_bertjax() {
  local line="${COMP_LINE:0:COMP_POINT}" word previous command flag='' values='' closed='' prefix=''
  local start='' sign
  local -a before
  word="${line##*[[:space:]]}"
  read -ra before <<< "${line%"$word"}"
  command="${before[1]-}"
  command="${command//-/_}"
  previous="${before[${#before[@]} - 1]}"
  if [ "${#before[@]}" -le 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W 'COMMANDS --help --version' -- "$word")
    return
  fi
  if [[ $word == --*=* ]]; then
    flag="${word%%=*}" prefix="${word%%=*}=" start="${word#*=}"
  elif [[ $word == -* ]]; then
    start="${word#-}"
    start="${start#-}"
    start="--${start//-/_}"
    case "$command" in
FLAGS
    esac
    mapfile -t COMPREPLY < <(compgen -W "$values --help" -- "$start")
    return
  else
    start="$word"
    [[ $previous == --* ]] && flag="$previous"
  fi
  case "$command:${flag//-/_}" in
VALUES
  esac
  [ -n "$values" ] || return
  mapfile -t COMPREPLY < <(
    compgen -P "$prefix" -W "$values" -- "$start"
    [ -n "$closed" ] || compgen -P "$prefix" -f -- "$start"
  )
  # bash replaces only what follows the last = or :, if these separate words.
  for sign in = :; do
    if [[ $COMP_WORDBREAKS == *"$sign"* && $word == *"$sign"* ]]; then
      start="${word%"${word##*[=:]}"}"
      COMPREPLY=("${COMPREPLY[@]#"$start"}")
      break
    fi
  done
}
complete -o default -F _bertjax bertjax
"""

_ZSH = """\
#compdef bertjax
# Completion of bertjax in zsh. For the current shell: eval "$(bertjax completion zsh)". For all:
# write it to a file _bertjax in a folder of $fpath.
_bertjax() {
  local word="${words[CURRENT]}" previous="${words[CURRENT-1]}" command="${words[2]//-/_}"
  local flag='' closed=''
  local -a values
  if (( CURRENT == 2 )); then
    values=(COMMANDS)
    _describe command values
    return
  fi
  if [[ $word == --*=* ]]; then
    flag="${word%%=*}"
    compset -P '*='
  elif [[ $word == -* ]]; then
    case "$command" in
FLAGS
    esac
    _describe -o flag values
    return
  elif [[ $previous == --* ]]; then
    flag="$previous"
  fi
  case "$command:${flag//-/_}" in
VALUES
  esac
  (( ${#values} )) && compadd -a values
  [[ -n $closed ]] || _files
}
if [[ $funcstack[1] == _bertjax ]]; then _bertjax "$@"; else compdef _bertjax bertjax; fi
"""

_FISH = """\
# Completion of bertjax in fish. For the current shell: bertjax completion fish | source. For all:
#   bertjax completion fish > ~/.config/fish/completions/bertjax.fish
complete -c bertjax -n __fish_use_subcommand -f
complete -c bertjax -n __fish_use_subcommand -l help -d 'List all commands'
complete -c bertjax -n __fish_use_subcommand -l version -d 'Print the version'
"""


def bash_script(commands: Sequence[CompletedCommand]) -> str:
    """Returns a script that defines the completion of `bertjax` in bash, version 4 or newer."""
    flags = [
        f"      {command.name}) values='{' '.join(flag.name for flag in command.flags)}' ;;"
        for command in commands
    ]
    values = [
        f"    {pattern}) values={_quoted(' '.join(words))} closed={'1' if closed else ''} ;;"
        for pattern, words, closed in _values(commands)
    ]
    names = " ".join(command.name for command in commands)
    return _filled(_BASH, names, flags, values)


def zsh_script(commands: Sequence[CompletedCommand]) -> str:
    """Returns a script that defines the completion of `bertjax` in zsh."""
    flags = [
        f"      {command.name}) values=({' '.join(_described(f) for f in command.flags)}) ;;"
        for command in commands
    ]
    values = [
        f"    {pattern}) values=({' '.join(map(_quoted, words))}) closed={'1' if closed else ''} ;;"
        for pattern, words, closed in _values(commands)
    ]
    return _filled(_ZSH, " ".join(_described(command) for command in commands), flags, values)


def fish_script(commands: Sequence[CompletedCommand]) -> str:
    """Returns a script that defines the completion of `bertjax` in fish."""
    lines = []
    for command in commands:
        lines.append(
            f"complete -c bertjax -n __fish_use_subcommand -f -a {command.name} "
            f"-d {_quoted(command.description)}"
        )
        of_command = (
            f"complete -c bertjax -n '__fish_seen_subcommand_from {command.name}'"  # no blanks
        )
        if command.words:
            lines.append(f"{of_command} -f -a {_quoted(' '.join(command.words))}")
        for flag in command.flags:
            value = "" if flag.is_boolean else " -x" if flag.is_closed else " -r"
            offered = f" -a {_quoted(' '.join(flag.values))}" if value and flag.values else ""
            description = _quoted(flag.description)
            lines.append(f"{of_command} -l {flag.name[2:]}{value}{offered} -d {description}")
    return _FISH + "\n".join(lines) + "\n"


def _filled(template: str, names: str, flags: list[str], values: list[str]) -> str:
    parts = {"COMMANDS": names, "FLAGS": "\n".join(flags), "VALUES": "\n".join(values)}
    return re.sub("COMMANDS|FLAGS|VALUES", lambda match: parts[match[0]], template)


def _values(commands: Sequence[CompletedCommand]) -> list[tuple[str, tuple[str, ...], bool]]:
    """Returns (patterns of COMMAND:FLAG, values, whether there are no others) of flags with values.

    Flags with the same values share an entry. In a pattern, the dashes of a flag are underscores,
    as users may write --like_this or --like-this.
    """
    patterns: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for command in commands:
        if command.words:
            patterns.setdefault((command.words, True), []).append(f"{command.name}:")
        for flag in command.flags:
            if flag.values:
                pattern = f"{command.name}:{flag.name.replace('-', '_')}"
                patterns.setdefault((flag.values, flag.is_closed), []).append(pattern)
    return [("|".join(found), *key) for key, found in patterns.items()]


def _described(item: CompletedCommand | CompletedFlag) -> str:
    """Returns a name with its description in the form that zsh's `_describe` takes."""
    return _quoted(f"{item.name}:{item.description}")


def _quoted(text: str) -> str:
    """Returns `text` in single quotes, for all three shells."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"
