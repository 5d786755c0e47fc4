"""Kits for the messages of the protocol."""
