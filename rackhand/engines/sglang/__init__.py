"""SGLang: flags by version, log lines, trouble signs, endpoints."""
