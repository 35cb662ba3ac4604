"""Observe, plan, apply, observe again; hosts in parallel."""
