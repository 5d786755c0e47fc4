"""Producer, consumer and admin in Python. Not built yet."""
