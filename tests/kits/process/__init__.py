"""Real processes for tests, and the blocking client of one connection."""
