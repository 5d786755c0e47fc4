"""Kits for consumer groups and their shards."""
