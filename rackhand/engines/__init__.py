"""Inference engines under one Protocol. Pure, standard library only; travels in the zipapp."""
