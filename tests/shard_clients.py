"""Consumers of a shard, reduced to what they say: of the classic protocol and of the next one.

Each keeps what a real client keeps (member id, generation or epoch, what it owns) and acts on
answers as Kafka's clients do. A request that waits is picked up by `poll`.
"""

from typing import Any
from uuid import UUID

from millstream.model.errors import OperatingError
from millstream.wire.errors import ErrorCode
from shard_kit import Shell
from shard_requests import (
    assigned,
    commit,
    consumer_heartbeat,
    heartbeat,
    join,
    leave,
    sync,
)

Owned = set[tuple[str, int]]


class ClassicClient:
    """Eager: it gives up all it has before it joins again. As leader it deals out evenly."""

    def __init__(
        self, shell: Shell, group: str, name: str, *, topics: tuple[str, ...] = ("t",)
    ) -> None:
        self.shell, self.group, self.name, self.topics = shell, group, name, topics
        self.session_ms = 10_000
        self.member = ""
        self.generation = -1
        self.owned: Owned = set()
        self.is_stable = False
        self.is_leader = False
        self.topics_version = 0
        """Of the topics that it dealt out, as leader."""
        self.last_beat_ms = shell.now_ms
        self.last_error: Any = ErrorCode.NONE
        self._waiting: tuple[str, object] | None = None
        self._sent_ms = 0

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    @property
    def wants_rebalance(self) -> bool:
        """The leader sees that there are other topics or partitions than it dealt out."""
        return self.is_leader and self.topics_version != self.shell.topics.version

    # -- steps -------------------------------------------------------------------------------

    def join(self) -> None:
        """Send JoinGroup; `poll` takes the answer."""
        self.owned, self.is_stable = set(), False
        request = join(self.group, self.member, topics=self.topics, session_ms=self.session_ms)
        token = self.shell.ask("join_group", request, version=9, client_id=self.name)
        self._waiting = ("join", token)
        self.poll()

    def poll(self) -> None:
        """Take an answer that has come, and do what follows from it."""
        if self._waiting is None or self._waiting[1] not in self.shell.answers:
            return
        kind, token = self._waiting
        self._waiting = None
        answer = self.shell.answers.pop(token)
        code = code_of(answer)
        self.last_error = code
        # An answer says that it was alive when it asked; who joins may wait for long, and its
        # session begins with the answer.
        self.last_beat_ms = self.shell.now_ms if kind == "join" else self._sent_ms
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member = answer.member_id
            self.join()
        elif code != ErrorCode.NONE:
            self._failed(code)
        elif kind == "beat":
            pass
        elif kind == "join":
            self.member, self.generation = answer.member_id, answer.generation_id
            self._sync(answer)
        else:
            self.owned, self.is_stable = assigned(answer.assignment), True

    def _sync(self, answer: Any) -> None:
        given = None
        self.is_leader = answer.leader == self.member
        if self.is_leader:
            self.topics_version = self.shell.topics.version
            members = sorted(one.member_id for one in answer.members)
            given = deal(members, self.shell, self.topics)
        request = sync(self.group, self.member, self.generation, given)
        request.protocol_name = answer.protocol_name
        self._sent_ms = self.shell.now_ms
        token = self.shell.ask("sync_group", request, version=5)
        self._waiting = ("sync", token)
        self.poll()

    def heartbeat(self) -> Any:
        """Gives the code, unless the answer waits for something."""
        request = heartbeat(self.group, self.member, self.generation)
        self._waiting = ("beat", self.shell.ask("heartbeat", request, version=4))
        self._sent_ms = self.shell.now_ms
        self.poll()
        return None if self.is_waiting else self.last_error

    def _failed(self, code: Any) -> None:
        self.is_stable, self.owned = False, set()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.generation = -1
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member = ""

    def leave(self) -> Any:
        self.owned, self.is_stable, self._waiting = set(), False, None
        member, self.member, self.generation = self.member, "", -1
        return self.shell.ask("leave_group", leave(self.group, member), version=5)

    def crash(self) -> None:
        """It is gone, without a word."""
        self.owned, self.is_stable, self._waiting = set(), False, None
        self.member, self.generation = "", -1

    def moved(self, shell: Shell) -> None:
        """The coordinator is another one: what was asked is asked again."""
        self.shell, self._waiting = shell, None

    def commit(self, offsets: dict[tuple[str, int], int]) -> object:
        """Gives the token."""
        request = commit(self.group, offsets, member=self.member, generation=self.generation)
        return self.shell.ask("offset_commit", request, version=9)


class ConsumerClient:
    """Of the next-generation protocol. It says that it has let go with its next heartbeat."""

    def __init__(
        self, shell: Shell, group: str, name: str, *, topics: tuple[str, ...] = ("t",)
    ) -> None:
        self.shell, self.group, self.name, self.topics = shell, group, name, topics
        self.member = name
        self.epoch = 0
        self.owned: set[tuple[UUID, int]] = set()
        self.target: set[tuple[UUID, int]] = set()
        self.last_beat_ms = shell.now_ms
        self.last_error: Any = ErrorCode.NONE
        self._waiting: tuple[object, int] | None = None
        self._is_unsure = False

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    @property
    def is_member(self) -> bool:
        return self.epoch > 0

    def heartbeat(self) -> Any:
        """Full when it joins; otherwise what it owns, which is what acknowledges."""
        if self.epoch == 0:
            self.owned, self.target = set(), set()
            request = consumer_heartbeat(
                self.group,
                self.member,
                0,
                topics=self.topics,
                owned=(),
                rebalance_ms=20_000,
            )
        else:
            # Whoever may have missed an answer says everything, and is told everything again.
            request = consumer_heartbeat(
                self.group,
                self.member,
                self.epoch,
                topics=self.topics if self._is_unsure else None,
                owned=self.owned,
                rebalance_ms=20_000 if self._is_unsure else -1,
            )
        sent_ms = self.shell.now_ms
        token = self.shell.ask("consumer_group_heartbeat", request, version=1)
        self._waiting = (token, sent_ms)
        return self.poll()

    def poll(self) -> Any:
        """Take the answer if it has come."""
        if self._waiting is None or self._waiting[0] not in self.shell.answers:
            return None
        token, sent_ms = self._waiting
        self._waiting = None
        answer = self.shell.answers.pop(token)
        code = self.last_error = code_of(answer)
        if code != ErrorCode.NONE:
            self._is_unsure = True
            if code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self.crash()
            return code
        self.last_beat_ms = sent_ms
        self._is_unsure = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.target = {
                (topic.topic_id, one)
                for topic in answer.assignment.topic_partitions
                for one in topic.partitions
            }
            self.owned = set(self.target)
        return code

    def leave(self) -> object:
        request = consumer_heartbeat(self.group, self.member, -1)
        self.crash()
        return self.shell.ask("consumer_group_heartbeat", request, version=1)

    def crash(self) -> None:
        self.owned, self.target, self.epoch = set(), set(), 0
        self._waiting = None

    def moved(self, shell: Shell) -> None:
        """The coordinator is another one: what was asked is asked again."""
        self._is_unsure |= self.is_waiting
        self.shell, self._waiting = shell, None

    def commit(self, offsets: dict[tuple[str, int], int]) -> object:
        """Gives the token."""
        request = commit(self.group, offsets, member=self.member, generation=self.epoch)
        return self.shell.ask("offset_commit", request, version=9)


def deal(members: list[str], shell: Shell, topics: tuple[str, ...]) -> dict[str, Owned]:
    """All partitions, one after the other."""
    given: dict[str, Owned] = {one: set() for one in members}
    dealt = 0
    for name in topics:
        facts = shell.topics.by_name(name)
        for partition in range(0 if facts is None else facts.partition_count):
            given[members[dealt % len(members)]].add((name, partition))
            dealt += 1
    return given


def code_of(answer: Any) -> Any:
    """Of an answer or of a refusal, for which the broker has a table."""
    if isinstance(answer, OperatingError):
        return REFUSED.get(type(answer).__name__, type(answer).__name__)
    return ErrorCode(answer.error_code)


REFUSED = {
    "UnknownMember": ErrorCode.UNKNOWN_MEMBER_ID,
    "IllegalGeneration": ErrorCode.ILLEGAL_GENERATION,
    "RebalanceInProgress": ErrorCode.REBALANCE_IN_PROGRESS,
    "FencedMemberEpoch": ErrorCode.FENCED_MEMBER_EPOCH,
    "GroupNotFound": ErrorCode.GROUP_ID_NOT_FOUND,
    "StaleMemberEpoch": ErrorCode.STALE_MEMBER_EPOCH,
    "FencedInstance": ErrorCode.FENCED_INSTANCE_ID,
}
