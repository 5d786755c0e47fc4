"""Recorded histories and what must hold of them: the checkers."""
