"""The files that belong in a container: rendered templates, scripts, the user's files. Pure."""
