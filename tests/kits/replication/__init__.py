"""Kits for leaders and followers."""
