"""APIs whose request has many keys (topics, partitions, resources), each with its own outcome.

The keys are grouped by the broker that serves them, all brokers get their requests at the same
time, and only keys with a retriable error are retried until the deadline: a partition without a
leader does not hold up the others, nor are those requested twice.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from millstream.client.cluster import ATTEMPT_ERRORS, Cluster, RequestOrFactory
from millstream.client.errors import AnswerUnreadable, ClientError
from millstream.client.retries import Attempts, Deadline, Failure, as_client_error
from millstream.client.targets import ANY, LeaderOf, Node, Target
from millstream.model.ids import TopicPartition
from millstream.rpc.errors import RpcError
from millstream.wire.errors import ErrorCode

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Item(NamedTuple, Generic[K, R]):
    """The part of a response about one key."""

    key: K
    code: ErrorCode
    result: R | None = None
    """Set when the code is NONE."""
    message: str | None = None


class KeyedApi(ABC, Generic[K, V, R]):
    """One API whose requests have many keys."""

    FINAL: ClassVar[frozenset[ErrorCode]] = frozenset()
    """Retriable codes that are final for this API."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @abstractmethod
    async def route(self, keys: Collection[K]) -> dict[K, Target | Failure]:
        """The broker that serves each key."""

    @abstractmethod
    def build_request(self, items: Mapping[K, V]) -> RequestOrFactory:
        """The request for these keys, which all go to the same broker."""

    @abstractmethod
    def read(self, response: Any) -> Iterable[Item[K, R]]:
        """The items of a response."""

    @abstractmethod
    def final_outcome(
        self, key: K, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> R | ClientError:
        """The outcome of a final code; `was_lost`: an earlier attempt may have succeeded."""

    def repair_target(self, key: K, target: Target) -> Target:  # noqa: ARG002
        """What to look up again after a failure."""
        return target


class LeaderApi(KeyedApi[TopicPartition, V, R]):
    """An API that the leader of each partition serves."""

    async def route(
        self, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, Target | Failure]:
        metadata, now_s = self.cluster.metadata, self.cluster.now_s()
        topics = dict.fromkeys(one.topic for one in keys)
        stale = [name for name in topics if not metadata.is_fresh(name, now_s)]
        found: dict[TopicPartition, Target | Failure] = {}
        try:
            if stale:  # all at once; the loop below finds them in the cache
                await self.cluster.refresh(stale)
            for one in keys:
                found[one] = await self._leader(one)
        except ATTEMPT_ERRORS as error:
            return dict.fromkeys(keys, error)
        return found

    async def _leader(self, partition: TopicPartition) -> Target | Failure:
        try:
            return Node((await self.cluster.leader(partition)).broker.broker_id)
        except ClientError as error:
            if error.code is None:
                raise
            return error

    def repair_target(self, key: TopicPartition, target: Target) -> Target:  # noqa: ARG002
        return LeaderOf(key)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """From the metadata, so that a broker with another epoch refuses; -1 when unknown."""
        leader = self.cluster.metadata.leader_of(partition)
        return leader.leader_epoch if leader is not None else -1


async def call_each(
    api: KeyedApi[K, V, R], items: Mapping[K, V], deadline: Deadline
) -> dict[K, R | ClientError]:
    """Every item's outcome, in the order of the items."""
    call = _KeyedCall(api, items, deadline)
    while call.pending:
        await call.attempt()
    return {key: call.outcomes[key] for key in items}


class _KeyedCall(Generic[K, V, R]):
    """The state of one call: pending items and outcomes so far."""

    def __init__(self, api: KeyedApi[K, V, R], items: Mapping[K, V], deadline: Deadline) -> None:
        self._api = api
        self._cluster = api.cluster
        self._attempts: Attempts = api.cluster.attempts(deadline)
        self.pending = dict(items)
        self.outcomes: dict[K, R | ClientError] = {}
        self._lost: set[K] = set()

    async def attempt(self) -> None:
        """Send requests for all pending items; end them or wait for the next attempt."""
        failures = await self._send_all()
        last: Failure | None = None
        for key, (failure, target) in failures.items():
            remedy = self._attempts.remedy(failure, now_s=self._cluster.now_s())
            if remedy.is_retry:
                self._cluster.repair(remedy, self._api.repair_target(key, target))
                last = failure
            else:
                self._end(key, as_client_error(failure, self._attempts.deadline.what))
        if last is not None:
            try:
                await asyncio.sleep(self._attempts.failed(last, now_s=self._cluster.now_s()))
            except ClientError as error:
                for key in list(self.pending):
                    self._end(key, error)

    def _end(self, key: K, outcome: R | ClientError) -> None:
        self.outcomes[key] = outcome
        del self.pending[key]

    async def _send_all(self) -> dict[K, tuple[Failure, Target]]:
        """Send to all brokers at once; returns what failed, and the target it was sent to."""
        failures: dict[K, tuple[Failure, Target]] = {}
        groups: dict[Target, list[K]] = {}
        try:
            routes = await self._cluster.within(self._attempts, self._api.route(list(self.pending)))
        except ClientError as error:  # the deadline
            routes = dict.fromkeys(self.pending, error)
        for key, route in routes.items():
            if isinstance(route, ErrorCode | Exception):
                failures[key] = (route, ANY)
            else:
                groups.setdefault(route, []).append(key)
        for failed in await asyncio.gather(*(self._send_one(*one) for one in groups.items())):
            failures |= failed
        return failures

    async def _send_one(self, target: Target, keys: list[K]) -> dict[K, tuple[Failure, Target]]:
        request = self._api.build_request({key: self.pending[key] for key in keys})
        try:
            response = await self._cluster.within(
                self._attempts, self._cluster.send(request, to=target)
            )
        except ATTEMPT_ERRORS as error:
            if isinstance(error, RpcError) and error.may_have_been_processed:
                self._lost.update(keys)
            return dict.fromkeys(keys, (error, target))
        return self._take(response, target, keys)

    def _take(
        self, response: Any, target: Target, keys: list[K]
    ) -> dict[K, tuple[Failure, Target]]:
        failures: dict[K, tuple[Failure, Target]] = {}
        answers = {one.key: one for one in self._api.read(response)}
        for key in keys:
            one = answers.get(key)
            if one is None:
                error = AnswerUnreadable(self._attempts.deadline.what, f"no entry for {key}")
                failures[key] = (error, target)
            elif one.code is ErrorCode.NONE and one.result is not None:
                self._end(key, one.result)
            elif self._may_pass(one.code):
                if one.code is ErrorCode.REQUEST_TIMED_OUT:
                    self._lost.add(key)
                failures[key] = (one.code, target)
            else:
                was_lost = key in self._lost
                outcome = self._api.final_outcome(key, one.code, one.message, was_lost=was_lost)
                self._end(key, outcome)
        return failures

    def _may_pass(self, code: ErrorCode) -> bool:
        if code in self._api.FINAL:
            return False
        return self._attempts.remedy(code, now_s=self._cluster.now_s()).is_retry
