"""For all tests: a machine that is busy with other things must not fail a test by being slow."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
