"""Transport to Facts."""
