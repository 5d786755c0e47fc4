"""One broker killed under a real client."""
