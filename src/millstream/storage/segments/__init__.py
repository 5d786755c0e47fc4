"""One segment: its file of record batches and the indexes that lead into it."""
