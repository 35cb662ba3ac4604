"""Simulated GPUs: kinds, memory accounting per living process, and an nvidia-smi that reads it."""
