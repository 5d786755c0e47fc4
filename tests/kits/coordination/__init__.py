"""Worlds for stories about coordination."""
