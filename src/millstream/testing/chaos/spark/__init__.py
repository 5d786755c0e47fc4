"""Spark queries killed at every step of a micro-batch."""
