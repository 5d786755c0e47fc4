"""Hostile clients against a real cluster: whatever one sends, the others are served."""
