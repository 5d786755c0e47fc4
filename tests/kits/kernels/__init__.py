"""Kits for kernels and both of their twins."""
