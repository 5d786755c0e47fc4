"""Seeded random histories of one log."""
