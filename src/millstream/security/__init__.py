"""TLS, SASL and authorisation. Not built yet."""
