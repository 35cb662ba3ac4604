"""YAML to Fleet: every mistake at once, with file, line and the nearest right name."""
