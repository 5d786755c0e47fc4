"""Records of produce requests before the log takes them, and producer ids."""
