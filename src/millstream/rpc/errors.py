"""Errors of a request in flight. Each says whether the peer may have processed it."""

from millstream.model.errors import OperatingError
from millstream.wire.api_keys import ApiKey


class RpcError(OperatingError):
    """The base class."""

    may_have_been_processed: bool = False
    """False only if no byte of the request was sent: then another broker may safely get it."""


class UnsupportedApiVersion(RpcError):
    """There is no version of the API that we, the peer and the caller all allow."""

    def __init__(self, key: ApiKey, *, ours: range, theirs: range | None) -> None:
        self.key, self.ours, self.theirs = key, ours, theirs
        offered = "none" if theirs is None else _versions_text(theirs)
        super().__init__(
            f"{key.name}: {_versions_text(ours)} supported here, the peer has {offered}"
        )


class RequestTimedOut(RpcError):
    """No response before the request's deadline.

    If the request was in flight its connection was closed: the response could still come, and all
    later ones would be taken for others.
    """

    def __init__(self, address: str, *, may_have_been_processed: bool) -> None:
        self.address = address
        self.may_have_been_processed = may_have_been_processed
        where = "no response" if may_have_been_processed else "could not be sent"
        super().__init__(f"{address}: {where} in time")


class ConnectionLost(RpcError):
    """The connection was closed before the response."""

    def __init__(self, address: str, reason: str, *, may_have_been_processed: bool) -> None:
        self.address, self.reason = address, reason
        self.may_have_been_processed = may_have_been_processed
        super().__init__(f"{address}: {reason}")


class ConnectFailed(ConnectionLost):
    """The connection could not be opened: refused, unreachable, too slow, or not Kafka."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, may_have_been_processed=False)


class PeerViolation(RpcError):
    """The peer violated the protocol; nothing it sends can be trusted any more."""


def _versions_text(versions: range) -> str:
    if not versions:
        return "no version"
    return f"version {versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
