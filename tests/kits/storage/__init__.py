"""Kits for logs and the log manager."""
