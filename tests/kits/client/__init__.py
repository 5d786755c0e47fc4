"""Fake brokers and stories for the client."""
