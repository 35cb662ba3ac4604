"""The sources of a watch, each on its own: logs, endpoints, nvidia-smi, progress files; and the way out."""
