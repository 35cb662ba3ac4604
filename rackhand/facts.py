"""Facts: what was observed of one host, and the parsers from raw output to facts."""
