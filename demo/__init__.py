"""The field report's run, relived on the lab with the real verbs."""
