# For the current shell: eval "$(bertjax completion zsh)". For all: write it to a file _bertjax in
# a folder of $fpath.
_bertjax() {
  local word="${words[CURRENT]}"
  words=("${(@)words[1,CURRENT-1]//-/_}")
  words=("${(@)words/#__/--}")
  if [[ $word == --*=* ]]; then
    words+=("${word%%=*}")
    word="${word#*=}"
    compset -P '*='
  fi
  words+=("$word")
  CURRENT=${#words}
  _tyro_bertjax || _files
}
if [[ $funcstack[1] == _bertjax ]]; then _bertjax "$@"; else compdef _bertjax bertjax; fi
