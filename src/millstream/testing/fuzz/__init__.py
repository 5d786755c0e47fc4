"""Damaged requests for every request parser; compiled and plain twins must agree."""
