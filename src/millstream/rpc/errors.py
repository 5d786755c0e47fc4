"""What can go wrong with a request on its way. Each says whether the peer may have acted on it."""

from millstream.model.errors import OperatingError
from millstream.wire.api_keys import ApiKey


class RpcError(OperatingError):
    """Base of all of them."""

    may_have_been_processed: bool = False
    """False only when not a byte of the request left us: then it is safe to send it elsewhere."""


class UnsupportedApiVersion(RpcError):
    """We and the peer have no version of the API in common, within what the caller allows."""

    def __init__(self, key: ApiKey, *, ours: range, theirs: range | None) -> None:
        self.key, self.ours, self.theirs = key, ours, theirs
        offered = f"the peer has {_told(theirs)}" if theirs is not None else "the peer has none"
        super().__init__(f"{key.name}: {_told(ours)} is possible here, {offered}")


class RequestTimedOut(RpcError):
    """No answer within the request's time.

    When the request was already on its way its connection was closed: the answer could still
    come, and everything behind it would be taken for something else.
    """

    def __init__(self, address: str, *, may_have_been_processed: bool) -> None:
        self.address = address
        self.may_have_been_processed = may_have_been_processed
        where = "no answer" if may_have_been_processed else "could not be sent"
        super().__init__(f"{address}: {where} in time")


class ConnectionLost(RpcError):
    """The connection ended before the answer."""

    def __init__(self, address: str, reason: str, *, may_have_been_processed: bool) -> None:
        self.address, self.reason = address, reason
        self.may_have_been_processed = may_have_been_processed
        super().__init__(f"{address}: {reason}")


class ConnectFailed(ConnectionLost):
    """There was no connection to begin with: refused, unreachable, too slow, or not Kafka."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason, may_have_been_processed=False)


class PeerViolation(RpcError):
    """The peer sent what the protocol does not allow; nothing it says can be trusted any more."""


def _told(versions: range) -> str:
    if not versions:
        return "no version"
    return f"version {versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
