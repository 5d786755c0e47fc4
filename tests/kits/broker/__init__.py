"""Kits for handlers and the data plane of a broker without sockets."""
