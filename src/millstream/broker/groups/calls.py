"""Requests on their way to a group and back: who waits for the answer, and what errors become.

A request for one group waits without a task or a future: its answer is sent by whoever makes it
ready. Requests that name many groups, or have much to encode, are coroutines.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.groups.effects import Caller
from millstream.groups.errors import CoordinatorNotAvailable
from millstream.model.errors import OperatingError
from millstream.wire.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.broker.groups.service import GroupsPart
    from millstream.groups.shell.held_shard import Question
    from millstream.groups.shell.home import Asker

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


def is_consumer_protocol_on(context: Context) -> bool:
    """Whether the next-generation protocol of groups is served."""
    protocols = context.services.configs.get_list("group.coordinator.rebalance.protocols")
    return "consumer" in protocols


def group_code(error: OperatingError) -> ErrorCode:
    """The code by which a client of a group can tell what to do."""
    code = code_of(error)
    return _AS_COORDINATOR.get(code, code)


def groups_of(context: Context) -> "GroupsPart":
    """The broker's groups; raises CoordinatorNotAvailable where it has none."""
    groups = context.services.groups
    if groups is None:
        raise CoordinatorNotAvailable
    return groups


def caller_of(context: Context, token: object) -> Caller:
    """As members of groups are known and shown."""
    facts = context.facts
    # Kafka shows an address as Java does, with a slash where the name would be.
    return Caller(token, facts.version, facts.client_id or "", f"/{context.peer.client_host}")


class GroupCall:
    """A request for one group. Implements `groups.shell.home.Asker`."""

    __slots__ = ("_context", "_failed", "_finish", "_request")

    def __init__(
        self, context: Context, request: Any, failed: Failed, finish: Finish | None
    ) -> None:
        self._context = context
        self._request = request
        self._failed = failed
        self._finish = finish

    def answered(self, response: Any) -> None:
        """Send it, unless nobody is there any more; without an answer nobody is left waiting."""
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
        if getattr(response, "error_message", ""):
            response.error_message = text_of(error)
        return response


def call(
    context: Context,
    request: Any,
    question: "Question",
    failed: Failed,
    *,
    finish: Finish | None = None,
    keeps_gathered: bool = False,
) -> None:
    """Hand the request to its group; the answer is sent when it is ready.

    `finish` makes the answer of what the group says.
    """
    asker = GroupCall(context, request, failed, finish)
    call_as(asker, context, request, question, keeps_gathered=keeps_gathered)


def call_as(
    asker: "Asker",
    context: Context,
    request: Any,
    question: "Question",
    *,
    keeps_gathered: bool,
) -> None:
    """The same for an asker of the caller's own."""
    try:
        groups_of(context).ask(
            request.group_id,
            question,
            caller_of(context, asker),
            request,
            keeps_gathered=keeps_gathered,
        )
    except OperatingError as error:
        asker.answered(error)


class _Awaited:
    """Implements `groups.shell.home.Asker` for coroutines."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(self, response: Any) -> None:
        if isinstance(response, OperatingError):
            # Its frames know who asks: without this nothing of the call is freed before the garbage
            # collector comes, which holds up everybody for seconds after many refusals.
            response.__traceback__ = None
        if not self.future.done():
            self.future.set_result(response)


def asking(
    context: Context,
    group_id: str,
    question: "Question",
    request: Any,
    *,
    keeps_gathered: bool = False,
) -> "asyncio.Future[Any]":
    """What the group answers, or the OperatingError that keeps it from that, as a result."""
    index = groups_of(context).partition_of(group_id)
    return asking_shard(context, index, question, request, keeps_gathered=keeps_gathered)


def asking_shard(
    context: Context, index: int, question: "Question", request: Any, *, keeps_gathered: bool = True
) -> "asyncio.Future[Any]":
    """The same for a partition of the offsets topic."""
    asker = _Awaited()
    caller = caller_of(context, asker)
    try:
        groups_of(context).coordinator.ask(
            index, question, caller, request, keeps_gathered=keeps_gathered
        )
    except OperatingError as error:
        asker.answered(error)
    return asker.future
