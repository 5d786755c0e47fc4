"""Requests on their way to a group and back: who waits for the answer, and what errors become.

A request for one group waits without a task or a future: its answer is sent by whoever makes it
ready. Requests that name many groups, or have much to encode, are coroutines.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError
from millstream.shards.effects import Caller
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused
from millstream.wire.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.broker.groups.service import GroupService
    from millstream.groups.coordinator import GroupCoordinator
    from millstream.shards.context import ResponseSink

_AS_COORDINATOR: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a client of a group is told of a log that did not take the group's records, as by Kafka: it
knows the group, not the log."""


Failed = Callable[[Any, ErrorCode, int], Any]
Finish = Callable[[Any], Any]
RequestMethod = Callable[[Caller, Any], None]
"""A request of the `GroupCoordinator`, such as its `join_group`."""


def is_consumer_protocol_on(context: Context) -> bool:
    """Whether the next-generation protocol of groups is served."""
    protocols = context.services.configs.get_list("group.coordinator.rebalance.protocols")
    return "consumer" in protocols


def group_code(error: OperatingError) -> ErrorCode:
    """The code by which a client of a group can tell what to do."""
    code = code_of(error)
    return _AS_COORDINATOR.get(code, code)


def group_text(error: OperatingError) -> str | None:
    """What an answer says besides the code: as in Kafka nothing, unless the group had more to say.

    What kept the log from taking the group's records is not for the clients of the group.
    """
    return error.reason if isinstance(error, RequestRefused) else None


def groups_of(context: Context) -> "GroupService":
    """The broker's groups; raises CoordinatorNotAvailable where it has none."""
    groups = context.services.groups
    if groups is None:
        raise CoordinatorNotAvailable
    return groups


def coordinator_of(context: Context) -> "GroupCoordinator":
    """The broker's group coordinator; raises CoordinatorNotAvailable where it has none."""
    return groups_of(context).coordinator


def caller_of(context: Context, token: "ResponseSink") -> Caller:
    """As members of groups are known and shown."""
    facts = context.facts
    # Kafka shows an address as Java does, with a slash where the name would be.
    return Caller(token, facts.version, facts.client_id or "", f"/{context.peer.client_host}")


class GroupCall:
    """A request for one group. Implements `shards.context.ResponseSink`.

    `finish` makes the answer of what the group responds.
    """

    __slots__ = ("_context", "_failed", "_finish", "_request")

    def __init__(
        self, context: Context, request: Any, failed: Failed, finish: Finish | None = None
    ) -> None:
        self._context = context
        self._request = request
        self._failed = failed
        self._finish = finish

    def submit(self, method: RequestMethod) -> None:
        """Hand the request to the coordinator; the answer is sent when it is ready."""
        try:
            method(caller_of(self._context, self), self._request)
        except OperatingError as error:
            self.respond(error)

    def respond(self, response: Any) -> None:
        """Send it, unless the client is gone; without an answer nobody is left waiting."""
        context = self._context
        if not context.peer.is_open:
            return
        try:
            if isinstance(response, OperatingError):
                response = self._refused(response)
            elif self._finish is not None:
                response = self._finish(response)
            context.answer(response)
        except Exception as error:
            context.close(f"an answer of a group could not be sent: {error!r}")
            raise

    def _refused(self, error: OperatingError) -> Any:
        response = self._failed(self._request, group_code(error), self._context.version)
        if hasattr(response, "error_message"):
            response.error_message = group_text(error)
        return response


class _AwaitedResponse:
    """Implements `shards.context.ResponseSink` for coroutines."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def respond(self, response: Any) -> None:
        if isinstance(response, OperatingError):
            # Its frames know the caller: without this nothing of the call is freed before the
            # garbage collector comes, which stops the broker for seconds after many refusals.
            response.__traceback__ = None
        if not self.future.done():
            self.future.set_result(response)


def response_of(method: RequestMethod, context: Context, request: Any) -> "asyncio.Future[Any]":
    """What the group responds, or the OperatingError that keeps it from that, as a result."""
    sink = _AwaitedResponse()
    try:
        method(caller_of(context, sink), request)
    except OperatingError as error:
        sink.respond(error)
    return sink.future
