"""What can go wrong with the coordination service, as types.

The most important one is `ConnectionLost`: it says that nobody knows whether the change was made.
"""

from millstream.model.errors import OperatingError


class CoordinationError(OperatingError):
    """Base of everything the coordination service, or the way to it, is the cause of."""


class ConnectionLost(CoordinationError):
    """The connection went away before the answer came; the session may still be alive.

    With `is_in_doubt` the request may have been carried out all the same: go on only on proof
    (owner and version of the node), never by trying again and taking NodeExists for a failure.
    """

    def __init__(self, reason: str = "connection lost", *, is_in_doubt: bool = True) -> None:
        self.is_in_doubt = is_in_doubt
        super().__init__(f"{reason} (in doubt)" if is_in_doubt else reason)


class SessionLost(CoordinationError):
    """The session is gone for good: expired, closed, or dropped by the watchdog.

    Its ephemeral nodes are gone or will be; a new session is a new `connect`.
    """


class AnswerRefused(CoordinationError):
    """Base of what the service itself says no with; nothing was changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{type(self).__name__}: {path}" if path else type(self).__name__)


class NoNode(AnswerRefused):
    """The node, or the parent of the one to create, does not exist."""


class NodeExists(AnswerRefused):
    """Somebody was first."""


class BadVersion(AnswerRefused):
    """The node was changed since the version that was given."""


class NotEmpty(AnswerRefused):
    """The node has children and cannot be deleted."""


class NoChildrenForEphemerals(AnswerRefused):
    """The parent is ephemeral."""


class BadArguments(AnswerRefused):
    """A path or a flag that the service does not take."""


class NotAllowed(AnswerRefused):
    """The node's access list does not let us."""


class Unexpected(AnswerRefused):
    """An error code that we have no type for."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.reason = reason
        self.args = (f"{reason}: {path}",)


class MultiFailed(CoordinationError):
    """One operation of a multi was refused, so none was carried out."""

    def __init__(self, *, index: int, cause: AnswerRefused) -> None:
        self.index, self.cause = index, cause
        super().__init__(f"operation {index} of a multi: {cause}")


class MultiUnproved(CoordinationError):
    """The answer to a multi was lost, and what is there does not tell whether it was carried out.

    Only where others change the same nodes without a common fence: read, and decide anew.
    """


class RequestTooLarge(CoordinationError):
    """More operations or bytes than one request may have; it was not sent."""


class CannotConnect(CoordinationError):
    """No session within the time given."""
