"""tmux argv builders and the list-panes parser."""
