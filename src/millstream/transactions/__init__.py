"""The transaction coordinator: a pure machine and a thin shell. Not built yet."""
