"""The offline scan of a partition directory, for `millstream log verify`."""
