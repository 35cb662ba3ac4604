"""Action to commands to Outcome."""
