"""One log directory: its lock, its checkpoint files, its health, deferred deletions."""
