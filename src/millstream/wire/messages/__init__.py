"""The message catalogue: one module per API, each message declared once for all its versions."""
