"""Plain-Python twins of the compiled kernels: fallback where no compiler was, oracle in tests."""
