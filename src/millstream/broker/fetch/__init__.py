"""How a fetch is read, waits at the tail and is answered; fetch sessions."""
