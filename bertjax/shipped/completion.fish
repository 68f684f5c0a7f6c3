# For the current shell: bertjax completion fish | source. For all:
#   bertjax completion fish > ~/.config/fish/completions/bertjax.fish
complete -c bertjax -e
complete -c bertjax -n __fish_use_subcommand -f -a '(_tyro_bertjax)'
complete -c bertjax -n 'not __fish_use_subcommand' -a '(_tyro_bertjax)'
