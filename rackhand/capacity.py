"""Memory model: flags, model, GPU to slots, running requests, KV tokens. Pure."""
