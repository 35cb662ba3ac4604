"""Secrets resolved from the environment or a command; masked in every repr."""
