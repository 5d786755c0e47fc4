"""The client's view of a cluster, with its connections: the shell around `MetadataCache`.

Everything that talks to brokers goes through here. `call` is for single requests: it finds the
broker, and retries until its deadline. Hot paths take a `leader_connection`, send on it themselves
and report with `partition_failed` when the leader did not serve. Nothing runs in the background:
metadata is requested when it is needed and too old, so an idle client costs nothing.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from millstream.client.errors import (
    BrokersUnreachable,
    ClientError,
    ConfigInvalid,
    TopicRecreated,
    code_of,
    error_for,
)
from millstream.client.fetch.slots import FetchSlots
from millstream.client.metadata import Leader, LeaderHint, MetadataCache, TopicInfo
from millstream.client.retries import (
    Attempts,
    Deadline,
    Failure,
    Remedy,
    as_client_error,
    cause_of,
    remedy_for,
)
from millstream.client.routes import Routes
from millstream.client.settings import ClientSettings
from millstream.client.targets import ANY, LeaderOf, Target
from millstream.model.ids import TopicId, TopicPartition
from millstream.rpc.connection import Connection
from millstream.rpc.errors import RpcError
from millstream.runtime.network import LoopNetwork, Network
from millstream.runtime.randomness import Randomness, system_randomness
from millstream.wire.catalogue import api_name
from millstream.wire.errors import ErrorCode
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message

T = TypeVar("T")

UNKNOWN_TOPIC_GRACE_S: Final = 1.0
"""How long to retry an unknown topic before TopicUnknown: brokers learn of a new one one by one."""

ATTEMPT_ERRORS: Final = (RpcError, ClientError, MalformedFrame)
"""What an attempt can fail with; `recover` decides whether to retry."""

RequestOrFactory = Message | Callable[[Connection], Message]
"""A request, or a function that makes it for the versions of a broker."""


class LeaderConnection(NamedTuple):
    """A connection to a partition's leader, for hot paths (`Connection.send_raw`)."""

    connection: Connection
    leader: Leader


class Cluster:
    """One per settings and loop; all methods are called on the loop's thread."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        network: Network | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.settings = settings
        self.metadata = MetadataCache(
            max_age_s=settings.metadata_max_age_ms / 1000,
            max_idle_s=settings.metadata_max_idle_ms / 1000,
        )
        self.fetch_slots = FetchSlots()
        self._randomness = randomness if randomness is not None else system_randomness()
        network = network if network is not None else LoopNetwork()
        self._routes = Routes(settings, self.metadata, network, self._randomness)

    # -- attempts within a deadline

    def now_s(self) -> float:
        """The clock of all deadlines."""
        return asyncio.get_running_loop().time()

    def deadline(self, what: str, timeout_s: float | None = None) -> Deadline:
        """Of a call that begins now; default: `default.api.timeout.ms`."""
        within_s = self.settings.api_timeout_s if timeout_s is None else timeout_s
        return Deadline.after(within_s, now_s=self.now_s(), what=what)

    def attempts(
        self, deadline: Deadline, *, unknown_grace_s: float = UNKNOWN_TOPIC_GRACE_S
    ) -> Attempts:
        return Attempts(
            deadline,
            self.settings.retry_backoff,
            self._randomness,
            unknown_until_s=self.now_s() + unknown_grace_s,
        )

    async def within(self, attempts: Attempts, work: Coroutine[Any, Any, T]) -> T:
        """The result of an attempt, unless the deadline passes first.

        Then only the wait ends, not the request: to cancel that would mean to close a connection
        which other calls use too.
        """
        try:
            async with asyncio.timeout_at(attempts.deadline.at_s):
                return await work
        except TimeoutError:
            last = attempts.last
            if self._routes.unreached:
                last = BrokersUnreachable(self._routes.unreached)
            raise attempts.deadline.error(last) from None

    async def recover(
        self,
        attempts: Attempts,
        failure: Failure,
        *,
        to: Target = ANY,
        may_repeat: bool = True,
    ) -> None:
        """After a failed attempt: wait until it is time for the next, or raise a ClientError."""
        remedy = attempts.remedy(failure, now_s=self.now_s(), may_repeat=may_repeat)
        if not remedy.is_retry:
            raise as_client_error(failure, attempts.deadline.what) from cause_of(failure)
        self._routes.repair(remedy, to)
        await asyncio.sleep(attempts.failed(failure, now_s=self.now_s()))
        self._routes.check_open()

    # -- one request

    async def call(
        self,
        request: RequestOrFactory,
        *,
        to: Target = ANY,
        deadline: Deadline | None = None,
        error_of: Callable[[Any], ErrorCode] | None = None,
        may_repeat: bool = True,
        versions: range | None = None,
    ) -> Any:
        """The response. Retriable errors are retried; all others are raised as a ClientError.

        `error_of` extracts the error code from the response: by default its `error_code`.
        Without `may_repeat` a request whose response was lost is not sent again.
        """
        if deadline is None:
            deadline = self.deadline(_name_of(request, to))
        attempts = self.attempts(deadline)
        while True:
            failure: Failure
            try:
                response = await self.within(attempts, self.send(request, to=to, versions=versions))
            except ATTEMPT_ERRORS as error:
                failure = error
            else:
                failure = (error_of or _top_error)(response)
                if failure is ErrorCode.NONE:
                    return response
            await self.recover(attempts, failure, to=to, may_repeat=may_repeat)

    async def send(
        self, request: RequestOrFactory, *, to: Target = ANY, versions: range | None = None
    ) -> Any:
        """One attempt of `call`; raises one of ATTEMPT_ERRORS."""
        connection = await self._routes.connection(to)
        request = request if isinstance(request, Message) else request(connection)
        return await connection.send(request, versions=versions)

    # -- leaders, for hot paths

    async def leader_connection(
        self,
        partition: TopicPartition,
        *,
        purpose: str = "",
        topic_id: TopicId | None = None,
        deadline: Deadline | None = None,
    ) -> LeaderConnection:
        """An open connection to the leader; tries until the deadline.

        Requests of one `purpose` share a connection: long polls would hold up others. With
        `topic_id`, a topic that was recreated since raises TopicRecreated.
        """
        if deadline is None:
            deadline = self.deadline(f"a connection to the leader of {partition}")
        attempts = self.attempts(deadline)
        while True:
            try:
                leader = await self.within(attempts, self._routes.leader(partition))
                if topic_id is not None and leader.topic_id not in (None, topic_id):
                    # The cached metadata may be older than the requested topic.
                    await self.within(attempts, self.refresh([partition.topic]))
                    leader = await self.within(attempts, self._routes.leader(partition))
                check_topic_id(partition.topic, expected=topic_id, found=leader.topic_id)
                work = self._routes.connect(leader.broker, purpose=purpose)
                return LeaderConnection(await self.within(attempts, work), leader)
            except ATTEMPT_ERRORS as error:
                await self.recover(attempts, error, to=LeaderOf(partition))

    def leader_connection_now(
        self, partition: TopicPartition, *, purpose: str = ""
    ) -> LeaderConnection | None:
        """The same without waiting: None when metadata or a connection is missing."""
        now_s = self.now_s()
        if not self.metadata.is_fresh(partition.topic, now_s):
            return None
        leader = self.metadata.leader_of(partition)
        if leader is None:
            return None
        self.metadata.use(partition.topic, now_s)
        connection = self._routes.existing(leader.broker, purpose=purpose)
        return LeaderConnection(connection, leader) if connection is not None else None

    def repair(self, remedy: Remedy, to: Target) -> None:
        """For callers with a retry loop of their own: drop what a failure has shown to be wrong."""
        self._routes.repair(remedy, to)

    async def leader(self, partition: TopicPartition) -> Leader:
        """One attempt to find it, from the cache if possible; raises one of ATTEMPT_ERRORS."""
        return await self._routes.leader(partition)

    def partition_failed(
        self, partition: TopicPartition, failure: Failure, hint: LeaderHint | None = None
    ) -> Remedy:
        """A leader responded with an error or not at all. What to do; GIVE_UP: a final error.

        The hint is the current leader as named by the response; it makes a metadata request
        unnecessary.
        """
        remedy = remedy_for(failure)
        if Remedy.REFRESH in remedy and self.metadata.partition_failed(partition, hint):
            remedy &= ~Remedy.REFRESH
        return remedy

    # -- topics

    async def refresh(self, names: Iterable[str] = (), *, creates: bool = False) -> None:
        """One metadata request for brokers, for topics that are due, and for these."""
        await self._routes.refresh(names, creates=creates)

    async def topics(
        self,
        names: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        deadline: Deadline | None = None,
    ) -> dict[str, TopicInfo]:
        """Topics by name, from current metadata; all, or those whose whole name matches.

        Raises TopicUnknown or another ClientError for a name that cannot be resolved.
        """
        if names is None:
            return await self._all_topics(pattern, deadline)
        found = await self.topics_each(names, deadline=deadline)
        return {name: or_raise(one) for name, one in found.items()}

    async def topics_each(
        self,
        names: Iterable[str],
        *,
        deadline: Deadline | None = None,
        unknown_grace_s: float = UNKNOWN_TOPIC_GRACE_S,
        creates: bool = False,
    ) -> dict[str, TopicInfo | ClientError]:
        """Each topic or its error; raises only when no broker can be reached."""
        if deadline is None:
            deadline = self.deadline("metadata of topics")
        attempts = self.attempts(deadline, unknown_grace_s=unknown_grace_s)
        found: dict[str, TopicInfo | ClientError] = {}
        wanted = list(dict.fromkeys(names))
        while missing := [name for name in wanted if name not in found]:
            failure: Failure = ErrorCode.NONE
            try:
                await self.within(attempts, self.refresh(missing, creates=creates))
            except ATTEMPT_ERRORS as error:
                failure = error
            else:
                for name in missing:
                    outcome = self._topic_or_error(name)
                    if isinstance(outcome, TopicInfo) or not self._may_pass(attempts, outcome):
                        found[name] = outcome
                    else:
                        failure = outcome
            if failure is not ErrorCode.NONE:
                await self.recover(attempts, failure)
        return {name: found[name] for name in wanted}

    def _may_pass(self, attempts: Attempts, error: ClientError) -> bool:
        return attempts.remedy(error, now_s=self.now_s()).is_retry

    def _topic_or_error(self, name: str) -> TopicInfo | ClientError:
        topic = self.metadata.topic(name)
        return topic if topic is not None else error_for(self.metadata.error_of(name), topic=name)

    async def _all_topics(
        self, pattern: str | re.Pattern[str] | None, deadline: Deadline | None
    ) -> dict[str, TopicInfo]:
        wanted = _compiled(pattern)
        attempts = self.attempts(deadline or self.deadline("the list of topics"))
        while True:
            try:
                found = await self.within(attempts, self._routes.all_topics())
            except ATTEMPT_ERRORS as error:
                await self.recover(attempts, error)
            else:
                return {
                    name: one
                    for name, one in sorted(found.items())
                    if wanted is None or wanted.fullmatch(name)
                }

    async def close(self) -> None:
        """Close every connection; calls that still wait raise ClientClosed."""
        await self._routes.close()


def check_topic_id(topic: str, *, expected: TopicId | None, found: TopicId | None) -> None:
    """Raise TopicRecreated when the topic is another one than expected."""
    if expected is not None and found is not None and expected != found:
        raise TopicRecreated(topic, old_id=expected, new_id=found)


def or_raise(outcome: T | ClientError) -> T:
    """The result of one item, or its error raised."""
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def _compiled(pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ConfigInvalid(f"{pattern!r} is not a valid regular expression: {error}") from None


def _top_error(response: Any) -> ErrorCode:
    return code_of(getattr(response, "error_code", 0))


def _name_of(request: RequestOrFactory, to: Target) -> str:
    return (
        f"{api_name(request.API_KEY)} to {to}"
        if isinstance(request, Message)
        else f"a request to {to}"
    )
