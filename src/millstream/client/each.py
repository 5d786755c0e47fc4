"""Requests about many things at once: each gets a result or an error of its own.

The things are spread over the brokers that must be asked, all of these are asked at the same time,
and what may pass is tried again until the deadline, alone: a partition without a leader does not
hold up the others, nor are those asked twice.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from millstream.client.cluster import ATTEMPT_ERRORS, Ask, Cluster
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
    """What an answer says about one thing."""

    key: K
    code: ErrorCode
    result: R | None = None
    """There when the code is NONE."""
    message: str | None = None


class Question(ABC, Generic[K, V, R]):
    """One API that takes many things."""

    FINAL: ClassVar[frozenset[ErrorCode]] = frozenset()
    """Codes that other requests try again after, and this one does not."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @abstractmethod
    async def route(self, keys: Collection[K]) -> dict[K, Target | Failure]:
        """Whom to ask about each."""

    @abstractmethod
    def ask(self, items: Mapping[K, V]) -> Ask:
        """The request about these, which all go to the same broker."""

    @abstractmethod
    def read(self, response: Any) -> Iterable[Item[K, R]]:
        """What the answer says about each."""

    @abstractmethod
    def refused(
        self, key: K, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> R | ClientError:
        """What a code means that ends it; `was_lost`: an earlier attempt may have done it."""

    def repair_target(self, key: K, asked: Target) -> Target:  # noqa: ARG002
        """What to find anew when asking about the thing failed."""
        return asked


class LeaderQuestion(Question[TopicPartition, V, R]):
    """One that the leader of each partition answers."""

    async def route(
        self, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, Target | Failure]:
        metadata, now_s = self.cluster.metadata, self.cluster.now_s()
        topics = dict.fromkeys(one.topic for one in keys)
        stale = [name for name in topics if not metadata.is_fresh(name, now_s)]
        found: dict[TopicPartition, Target | Failure] = {}
        try:
            if stale:  # all at once; what follows finds them in the cache
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

    def repair_target(self, key: TopicPartition, asked: Target) -> Target:  # noqa: ARG002
        return LeaderOf(key)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """As the metadata has it, so that a broker with other news says so; -1 when unknown."""
        leader = self.cluster.metadata.leader_of(partition)
        return leader.leader_epoch if leader is not None else -1


async def ask_each(
    question: Question[K, V, R], items: Mapping[K, V], deadline: Deadline
) -> dict[K, R | ClientError]:
    """Every item's outcome, in the order of the items."""
    asking = _Asking(question, items, deadline)
    while asking.pending:
        await asking.attempt()
    return {key: asking.outcomes[key] for key in items}


class _Asking(Generic[K, V, R]):
    """What became of the items so far."""

    def __init__(
        self, question: Question[K, V, R], items: Mapping[K, V], deadline: Deadline
    ) -> None:
        self._question = question
        self._cluster = question.cluster
        self._attempts: Attempts = question.cluster.attempts(deadline)
        self.pending = dict(items)
        self.outcomes: dict[K, R | ClientError] = {}
        self._lost: set[K] = set()

    async def attempt(self) -> None:
        """Ask about everything that is open; end or wait."""
        failures = await self._ask_all()
        last: Failure | None = None
        for key, (failure, target) in failures.items():
            remedy = self._attempts.remedy(failure, now_s=self._cluster.now_s())
            if remedy.is_retry:
                self._cluster.repair(remedy, self._question.repair_target(key, target))
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

    async def _ask_all(self) -> dict[K, tuple[Failure, Target]]:
        """Ask all brokers at once; what failed, and who was asked about it."""
        failures: dict[K, tuple[Failure, Target]] = {}
        groups: dict[Target, list[K]] = {}
        try:
            routes = await self._cluster.within(
                self._attempts, self._question.route(list(self.pending))
            )
        except ClientError as error:  # the deadline
            routes = dict.fromkeys(self.pending, error)
        for key, route in routes.items():
            if isinstance(route, ErrorCode | Exception):
                failures[key] = (route, ANY)
            else:
                groups.setdefault(route, []).append(key)
        for failed in await asyncio.gather(*(self._ask_one(*one) for one in groups.items())):
            failures |= failed
        return failures

    async def _ask_one(self, target: Target, keys: list[K]) -> dict[K, tuple[Failure, Target]]:
        request = self._question.ask({key: self.pending[key] for key in keys})
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
        told = {one.key: one for one in self._question.read(response)}
        for key in keys:
            one = told.get(key)
            if one is None:
                error = AnswerUnreadable(self._attempts.deadline.what, f"nothing about {key}")
                failures[key] = (error, target)
            elif one.code is ErrorCode.NONE and one.result is not None:
                self._end(key, one.result)
            elif self._may_pass(one.code):
                if one.code is ErrorCode.REQUEST_TIMED_OUT:
                    self._lost.add(key)
                failures[key] = (one.code, target)
            else:
                was_lost = key in self._lost
                outcome = self._question.refused(key, one.code, one.message, was_lost=was_lost)
                self._end(key, outcome)
        return failures

    def _may_pass(self, code: ErrorCode) -> bool:
        if code in self._question.FINAL:
            return False
        return self._attempts.remedy(code, now_s=self._cluster.now_s()).is_retry
