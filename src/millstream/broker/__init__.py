"""Composition of one broker: server, dispatch, one handler file per API. Not built yet."""
