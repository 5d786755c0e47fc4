"""What tests of the repository itself, and its Makefile, use."""
