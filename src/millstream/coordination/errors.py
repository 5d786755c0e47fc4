"""The errors of the coordination service.

The most important one is `ConnectionLost`: after it, it is unknown whether the change was made.
"""

from millstream.model.errors import OperatingError


class CoordinationError(OperatingError):
    """Base of all errors caused by the coordination service or the connection to it."""


class ConnectionLost(CoordinationError):
    """The connection was lost before the answer came; the session may still be alive.

    With `is_in_doubt` the request may still have been carried out: continue only on proof (owner
    and version of the node), never by retrying and taking NodeExists for a failure.
    """

    def __init__(self, reason: str = "connection lost", *, is_in_doubt: bool = True) -> None:
        self.is_in_doubt = is_in_doubt
        super().__init__(f"{reason} (in doubt)" if is_in_doubt else reason)


class SessionLost(CoordinationError):
    """The session is gone for good: expired, closed, or dropped by the watchdog.

    Its ephemeral nodes are gone or will be; a new session is a new `connect`.
    """


class AuthenticationFailed(SessionLost):
    """The service does not accept our secret, so there is no session."""


class RequestRefused(CoordinationError):
    """Base of the service's own refusals; nothing was changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{type(self).__name__}: {path}" if path else type(self).__name__)


class NoNode(RequestRefused):
    """The node, or the parent of the one to create, does not exist."""


class NodeExists(RequestRefused):
    """The node exists already."""


class BadVersion(RequestRefused):
    """The node was changed since the version that was given."""


class NotEmpty(RequestRefused):
    """The node has children and cannot be deleted."""


class NoChildrenForEphemerals(RequestRefused):
    """The parent is ephemeral."""


class BadArguments(RequestRefused):
    """A path or a flag that the service does not accept."""


class NotAllowed(RequestRefused):
    """The node's access list denies the request."""


class Unexpected(RequestRefused):
    """An error code that we have no type for."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.reason = reason
        self.args = (f"{reason}: {path}",)


class MultiFailed(CoordinationError):
    """One operation of a multi was refused, so none was carried out."""

    def __init__(self, *, index: int, cause: RequestRefused) -> None:
        self.index, self.cause = index, cause
        super().__init__(f"operation {index} of a multi: {cause}")


class MultiUnproved(CoordinationError):
    """The answer to a multi was lost, and the nodes do not show whether it was carried out.

    Only where other clients change the same nodes without a common fence: read, and decide again.
    """


class RequestTooLarge(CoordinationError):
    """More operations or bytes than one request may have; it was not sent."""


class CannotConnect(CoordinationError):
    """No session within the time given."""
