"""Fetching from leaders: one connection, one session and one request at a time per leader.

The shell around `FetchPlan`. A request is sent from the callback of the previous response, without
a task or a future. Only connecting, and finding out where a leader's log begins, are tasks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, Offset
from millstream.observe.logs import get_logger
from millstream.replication import fetch_wire
from millstream.replication.fetch_plan import FOREVER_S, FetchPlan
from millstream.replication.fetch_wire import FetchLimits
from millstream.replication.follower import NO_LEADER, Follower, Next
from millstream.replication.throttle import ReplicaThrottle
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.fetch import FetchRequest
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

log = get_logger("millstream.replication")

LATEST: Final = -1
EARLIEST: Final = -2

NO_ADDRESS_WAIT_S: Final = 0.1
"""How long to wait before checking the metadata again for a leader's missing address."""


LOST_WAIT_S: Final = 0.02
"""How long to wait before reconnecting after a failure: a leader may close every connection."""


@dataclass(slots=True, kw_only=True)
class FetcherDependencies:
    """What fetchers need from the broker."""

    connections: Connections
    address_of: Callable[[BrokerId], Address | None]
    """The leader's address on the inter-broker listener, from the current metadata."""
    replica: Callable[[], tuple[BrokerId, BrokerEpoch]]
    """This broker's id and its current broker epoch."""
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    limits: Callable[[], FetchLimits] = FetchLimits
    back_off_max_s: Callable[[], float] = lambda: 1.0
    """`replica.fetch.backoff.ms`."""
    flush_ready: Callable[[], None] = lambda: None
    """Sends responses that became ready while an answer was handled."""
    throttle: ReplicaThrottle = field(default_factory=ReplicaThrottle)
    """Limits what is fetched for partitions in which this broker is not in sync."""


class ReplicaFetchers:
    """Follows every partition from its leader. Implements `roles.FetcherManager`."""

    def __init__(self, dependencies: FetcherDependencies) -> None:
        self._dependencies = dependencies
        self._fetchers: dict[BrokerId, LeaderFetcher] = {}
        self._fetcher_of: dict[Follower, LeaderFetcher] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """The number of leaders fetched from."""
        return len(self._fetchers)

    def follow(self, follower: Follower) -> None:
        leader = follower.state.leader
        current = self._fetcher_of.get(follower)
        if current is not None and current.leader != leader:
            self.unfollow(follower)
        if self._is_closed or leader == NO_LEADER:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = LeaderFetcher(self._dependencies, leader)
        self._fetcher_of[follower] = fetcher
        fetcher.follow(follower)

    def unfollow(self, follower: Follower) -> None:
        fetcher = self._fetcher_of.pop(follower, None)
        if fetcher is None:
            return
        fetcher.unfollow(follower)
        if fetcher.is_idle:
            fetcher.close()
            del self._fetchers[fetcher.leader]

    def ready(self, follower: Follower) -> None:
        fetcher = self._fetcher_of.get(follower)
        if fetcher is not None:
            fetcher.ready(follower)

    def close(self) -> None:
        """Fetch nothing more."""
        self._is_closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._fetcher_of.clear()


class LeaderFetcher:
    """All partitions that are followed from one leader."""

    def __init__(self, dependencies: FetcherDependencies, leader: BrokerId) -> None:
        self._dependencies = dependencies
        self.leader = leader
        self._plan = FetchPlan(dependencies.throttle)
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._replica: tuple[BrokerId, BrokerEpoch] | None = None
        """The replica id and epoch that the current fetch session was started with."""
        self._is_connecting = False
        self._is_fetching = False
        """A request is in flight, or its response is being handled."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not len(self._plan)

    def follow(self, follower: Follower) -> None:
        self._plan.add(follower)
        following = follower.prepare()
        if following is not Next.FETCH:
            self._do(follower, following)
        self._go_on()

    def unfollow(self, follower: Follower) -> None:
        if self._plan.remove(follower):
            self._go_on()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def ready(self, follower: Follower) -> None:
        self._plan.ready(follower)
        self._go_on()

    # -- connecting ------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send the next request if there is one to send and none is in flight."""
        if self._is_closed or self._is_fetching:
            return
        connection = self._connection
        if connection is not None and connection.is_open:
            self._send_request(connection)
        elif not self._is_connecting and not self.is_idle:
            self._is_connecting = True
            self._dependencies.spawn(self._connect(), f"fetch from broker {self.leader}")

    async def _connect(self) -> None:
        """Retry until there is a connection; `Connections` backs off after each failure."""
        try:
            while not self._is_closed and not self.is_idle:
                address = self._dependencies.address_of(self.leader)
                if address is None:
                    await asyncio.sleep(NO_ADDRESS_WAIT_S)
                    continue
                try:
                    connection = await self._dependencies.connections.get(address)
                except OperatingError as error:
                    log.debug("leader unreachable", leader=self.leader, error=error)
                    await asyncio.sleep(0)
                    continue
                self._connection = connection
                self._plan.reset()
                break
        finally:
            self._is_connecting = False
        self._go_on()

    # -- requests --------------------------------------------------------------------------

    def _send_request(self, connection: Connection) -> None:
        dependencies, now_s = self._dependencies, self._loop.time()
        replica = dependencies.replica()
        if replica != self._replica:
            # For idle partitions the leader remembers the broker epoch of the first request in the
            # session, and adds no replica to the ISR with an older epoch than the controller knows.
            self._replica = replica
            self._plan.reset()
        need = self._plan.request(now_s)
        self._set_timer(now_s)
        if need is None:
            return
        body = fetch_wire.encode(
            dependencies.limits(),
            replica,
            need.session,
            positions=need.positions,
            forgotten=need.forgotten,
        )
        try:
            version = connection.version_of(FetchRequest, fetch_wire.VERSIONS)
            connection.send_raw(ApiKey.FETCH, version, (body,), self._answered)
        except RpcError as error:
            self._lost(connection, error)
            return
        self._is_fetching = True

    def _set_timer(self, now_s: float) -> None:
        """Wake up for partitions that are left out, in case no response triggers a request."""
        due_s = self._plan.due_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s < FOREVER_S:
            self._timer = self._loop.call_later(max(0.0, due_s - now_s), self._go_on)

    def _answered(self, answer: memoryview | RpcError) -> None:
        connection = self._connection
        try:
            if self._is_closed or connection is None:
                return
            if isinstance(answer, RpcError):
                self._lost(connection, answer)
                return
            self._take(connection, answer)
        finally:
            self._is_fetching = False
        self._go_on()
        self._dependencies.flush_ready()

    def _take(self, connection: Connection, body: memoryview) -> None:
        dependencies, now_s = self._dependencies, self._loop.time()
        try:
            is_good, lost = self._plan.answered(
                fetch_wire.decode(body), now_s=now_s, delay_max_s=dependencies.back_off_max_s()
            )
        except OperatingError as error:
            self._lost(connection, error)
            return
        for follower in lost:
            work = self._find_log_range(connection, follower)
            dependencies.spawn(work, f"find the log of {follower.partition}")
        if not is_good:
            for follower in self._plan:
                self._do(follower, Next.BACK_OFF)

    def _do(self, follower: Follower, following: Next) -> None:
        delay_max_s = self._dependencies.back_off_max_s()
        self._plan.do(follower, following, now_s=self._loop.time(), delay_max_s=delay_max_s)

    def _lost(self, connection: Connection, error: OperatingError) -> None:
        """The connection is unusable: close it and reconnect after a moment."""
        log.debug("replica fetch failed", leader=self.leader, error=error)
        connection.close(f"fetching failed: {error}")
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LOST_WAIT_S, self._go_on)

    # -- out of range ----------------------------------------------------------------------

    async def _find_log_range(self, connection: Connection, follower: Follower) -> None:
        """Find where the leader's log begins and ends, and resume from there (fenced as in
        KIP-320).
        """
        state = follower.state
        try:
            end = await self._offset(connection, follower, LATEST)
            start = await self._offset(connection, follower, EARLIEST)
        except OperatingError as error:
            log.debug(
                "could not find the leader's log range", partition=follower.partition, error=error
            )
            start = end = None
        if self._is_closed or not self._plan.holds(follower) or follower.state != state:
            return  # the answer is obsolete: another leader, or none
        if start is None or end is None:
            self._do(follower, Next.BACK_OFF)
        else:
            self._do(follower, follower.resume_out_of_range(leader_start=start, leader_end=end))
        self._go_on()

    async def _offset(
        self, connection: Connection, follower: Follower, which: int
    ) -> Offset | None:
        one = ListOffsetsPartition(
            partition_index=follower.partition.partition,
            current_leader_epoch=follower.state.leader_epoch,
            timestamp=which,
        )
        topic = ListOffsetsTopic(name=follower.partition.topic, partitions=[one])
        request = ListOffsetsRequest(replica_id=self._dependencies.replica()[0], topics=[topic])
        answer = await connection.send(request)
        for part in (part for topic in answer.topics for part in topic.partitions):
            return Offset(part.offset) if not part.error_code and part.offset >= 0 else None
        return None
