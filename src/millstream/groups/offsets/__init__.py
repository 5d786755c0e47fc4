"""The committed offsets of the groups of one partition of the offsets topic."""
