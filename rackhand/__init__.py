"""Batch inference on GPU machines that are reached through Proxmox or SSH: the control side."""
