"""What to do, from what is wanted and what was observed. Pure."""
