"""Opening a log: from a clean stop in moments, after a crash with recovery."""
