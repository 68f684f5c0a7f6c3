"""What every other part uses: files, locks, signals, progress and the command line."""
