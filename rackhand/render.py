"""Screen and plain output: the only importer of rich."""
