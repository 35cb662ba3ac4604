"""A prompts file as a stream of rows, whatever its format and shape."""
