"""Why a connection ended, as a label of the metrics; the reason in full goes to the log."""

from enum import StrEnum


class Cause(StrEnum):
    """See the module."""

    CLIENT = "client"
    PROTOCOL = "protocol"
    IDLE = "idle"
    FAILURE = "failure"
    STOP = "stop"
    LIMIT = "limit"
    MEMORY = "memory"
