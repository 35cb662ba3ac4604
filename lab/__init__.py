"""A Proxmox host on this machine, of real parts, for the demo and the tests."""
