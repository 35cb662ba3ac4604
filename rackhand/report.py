"""What was done and measured, as data."""
