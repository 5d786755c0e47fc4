"""The numbers of ZooKeeper's protocol, as version 3.9 has them."""

from enum import IntEnum
from typing import Final

OPEN_PERMISSIONS: Final = 31
PING_XID: Final = -2
WATCH_XID: Final = -1
AUTH_XID: Final = -4
SYNC_CONNECTED: Final = 3
"""The state that watch events carry."""
PASSWORD_BYTES: Final = 16


class Op(IntEnum):
    """The operation of a request."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11


class Code(IntEnum):
    """How a request ended."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    QUOTA_EXCEEDED = -125


class Event(IntEnum):
    """The event that a watch reports."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


class Permission(IntEnum):
    """Bits of an access list's entry."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


class KeeperError(Exception):
    """A request was refused with this code, and nothing was changed."""

    def __init__(self, code: Code) -> None:
        self.code = code
        super().__init__(code.name)
