"""Partitions that move between the log directories of one broker."""
