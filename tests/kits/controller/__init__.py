"""Kits for the controllers' decisions and shells."""
