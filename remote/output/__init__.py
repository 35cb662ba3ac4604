"""One output folder: shards, done set, job.json, recovery, upload. It decides what counts as done."""
