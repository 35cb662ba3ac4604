"""The PVE API: the only importer of proxmoxer."""
