"""A remote event stream to samples."""
