"""Kits for the Spark source and sink."""
