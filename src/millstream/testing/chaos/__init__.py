"""Real processes killed, paused and cut off while they work."""
