"""The group coordinator: pure machines and a thin shell."""
