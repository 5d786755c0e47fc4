"""The command line: `millstream`, one module per command."""
