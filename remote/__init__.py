"""The container side: travels as one zipapp, standard library only except for `generate`."""
