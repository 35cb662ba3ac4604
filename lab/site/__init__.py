"""Packages for the container's interpreter; this directory goes on its path, so that `sglang` is importable there."""
