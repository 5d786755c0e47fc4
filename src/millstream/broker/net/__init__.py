"""Sockets and what comes in and goes out through them: listeners, connections, shells, limits."""
