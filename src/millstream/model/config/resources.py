"""What can have settings, as the configuration requests number it."""

from enum import IntEnum


class ResourceType(IntEnum):
    """Kinds of resources."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
