"""Cython sources, imported only as built extension modules; `.pyi` files stand one level up."""
