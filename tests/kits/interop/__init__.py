"""Foreign clients, tools and peers for `make interop`."""
