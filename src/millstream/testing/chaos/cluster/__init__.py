"""A cluster of real processes under kills, pauses and partitions."""
