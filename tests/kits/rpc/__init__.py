"""Kits for request connections."""
