# For the current shell: eval "$(bertjax completion bash)". For all:
#   bertjax completion bash > ~/.local/share/bash-completion/completions/bertjax
_bertjax() {
  local line="${COMP_LINE:0:COMP_POINT}" word COMP_CWORD
  local -a COMP_WORDS
  word="${line##*[[:space:]]}"
  read -ra COMP_WORDS <<< "${line%"$word"}"
  if [[ $word == --*=* ]]; then
    COMP_WORDS+=("${word%%=*}")
    word="${word#*=}"
  elif [[ $word == --* ]]; then
    word="${word//-/_}"
    word="--${word:2}"
  fi
  COMP_WORDS=("${COMP_WORDS[@]//-/_}")
  COMP_WORDS=("${COMP_WORDS[@]/#__/--}" "$word")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _tyro_bertjax
  [ -n "${COMPREPLY[0]-}" ] || COMPREPLY=()
}
complete -o default -F _bertjax bertjax
