"""Passes requests to a group and its answers back, and maps errors.

A request for one group waits without a task or a future: its answer is sent by the code that
completes it. Requests that name many groups, or have much to encode, are coroutines.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError, without_frames
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
"""Error codes for clients of a group whose log did not accept its records, as in Kafka: a client
knows the group, not the log."""


Failed = Callable[[Any, ErrorCode, int], Any]
Finish = Callable[[Any], Any]
RequestMethod = Callable[[Caller, Any], None]
"""A request method of the `GroupCoordinator`, such as `join_group`."""


def is_consumer_protocol_on(context: Context) -> bool:
    """Whether the consumer group protocol (KIP-848) is enabled."""
    protocols = context.services.configs.get_list("group.coordinator.rebalance.protocols")
    return "consumer" in protocols


def group_code(error: OperatingError) -> ErrorCode:
    """The error code for a client of a group."""
    code = code_of(error)
    return _AS_COORDINATOR.get(code, code)


def group_text(error: OperatingError) -> str | None:
    """The error message for a client: as in Kafka none, unless the group gave a reason.

    Why the log did not accept the group's records is not for the clients of the group.
    """
    return error.reason if isinstance(error, RequestRefused) else None


def groups_of(context: Context) -> "GroupService":
    """The broker's group service; raises CoordinatorNotAvailable if it has none."""
    groups = context.services.groups
    if groups is None:
        raise CoordinatorNotAvailable
    return groups


def coordinator_of(context: Context) -> "GroupCoordinator":
    """The broker's group coordinator; raises CoordinatorNotAvailable if it has none."""
    return groups_of(context).coordinator


def caller_of(context: Context, token: "ResponseSink") -> Caller:
    """The caller as groups store and describe it."""
    facts = context.facts
    # Kafka shows an address as Java does, with a slash where the name would be.
    return Caller(token, facts.version, facts.client_id or "", f"/{context.peer.client_host}")


class GroupCall:
    """A request for one group. Implements `shards.context.ResponseSink`.

    `finish` makes the answer from the group's response.
    """

    __slots__ = ("_context", "_failed", "_finish", "_request")

    def __init__(
        self, context: Context, request: Any, failed: Failed, finish: Finish | None = None
    ) -> None:
        self._context = context
        self._request = request
        self._failed = failed
        self._finish = finish

    def submit(self, method: RequestMethod, request: Any = None) -> None:
        """Pass the request to the coordinator; the answer is sent when it is ready.

        `request`: the whole one, where only a part of it is kept until then.
        """
        try:
            method(caller_of(self._context, self), request or self._request)
        except OperatingError as error:
            self.respond(without_frames(error))

    def respond(self, response: Any) -> None:
        """Send it, unless the client is gone; if that fails the connection is closed."""
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
        if not self.future.done():
            self.future.set_result(response)


def response_of(method: RequestMethod, context: Context, request: Any) -> "asyncio.Future[Any]":
    """The group's response, or the OperatingError that prevented one, as a result."""
    sink = _AwaitedResponse()
    try:
        method(caller_of(context, sink), request)
    except OperatingError as error:
        sink.respond(without_frames(error))
    return sink.future
