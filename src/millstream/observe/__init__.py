"""Metrics and structured logs. Not built yet."""
