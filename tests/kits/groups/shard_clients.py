"""Consumers of a shard, reduced to what they say: of the classic protocol and of the next one.

Each keeps what a real client keeps (member id, generation or epoch, what it owns) and acts on
answers as Kafka's clients do. A request that waits is picked up by `poll`.
"""

from typing import Any
from uuid import UUID

from kits.groups.shard_kit import Shell
from kits.groups.shard_requests import (
    assigned,
    commit,
    consumer_heartbeat,
    heartbeat,
    join,
    leave,
    owning_subscription,
    sync,
)
from millstream.groups.consumer.embedded import decode_subscription
from millstream.model.errors import OperatingError
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponseMember

Owned = set[tuple[str, int]]

NEVER = -1
LOST = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
)
"""With these a classic member is none any more, or has missed a generation."""


class ClassicClient:
    """Eager: it gives up all it has before it joins again. As leader it deals out evenly."""

    instance: str | None = None
    """Of a static member."""

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
        request = join(
            self.group,
            self.member,
            topics=self.topics,
            instance=self.instance,
            session_ms=self.session_ms,
        )
        self._ask_to_join(request)

    def _ask_to_join(self, request: JoinGroupRequest) -> None:
        token = self.shell.submit("join_group", request, version=9, client_id=self.name)
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
        # A SyncGroup that was refused says nothing of that.
        if kind != "sync" or code == ErrorCode.NONE:
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
            self._take(assigned(answer.assignment))

    def _take(self, given: Owned) -> None:
        self.owned, self.is_stable = given, True

    def _sync(self, answer: Any) -> None:
        given = None
        self.is_leader = answer.leader == self.member
        if self.is_leader and answer.skip_assignment:
            self.topics_version = NEVER  # what it has dealt out was before it came back
        elif self.is_leader:
            self.topics_version = self.shell.topics.version
            given = self._deal(answer.members)
        request = sync(self.group, self.member, self.generation, given)
        request.protocol_name = answer.protocol_name
        request.group_instance_id = self.instance
        self._sent_ms = self.shell.now_ms
        token = self.shell.submit("sync_group", request, version=5)
        self._waiting = ("sync", token)
        self.poll()

    def _deal(self, members: list[JoinGroupResponseMember]) -> dict[str, Owned]:
        return deal(sorted(one.member_id for one in members), self.shell, self.topics)

    def heartbeat(self) -> Any:
        """Gives the code, unless the answer waits for something."""
        request = heartbeat(self.group, self.member, self.generation)
        request.group_instance_id = self.instance
        self._waiting = ("beat", self.shell.submit("heartbeat", request, version=4))
        self._sent_ms = self.shell.now_ms
        self.poll()
        return None if self.is_waiting else self.last_error

    def _failed(self, code: Any) -> None:
        self.is_stable, self.owned = False, set()
        if code in LOST:
            self.generation = -1
        if code in LOST and code != ErrorCode.ILLEGAL_GENERATION:
            self.member = ""

    def leave(self) -> Any:
        self.owned, self.is_stable, self._waiting = set(), False, None
        member, self.member, self.generation = self.member, "", -1
        return self.shell.submit("leave_group", leave(self.group, member), version=5)

    def crash(self) -> None:
        """It is gone, without a word."""
        self.owned, self.is_stable, self._waiting = set(), False, None
        self.member, self.generation = "", -1

    def moved(self, shell: Shell) -> None:
        """The coordinator is another one: what was asked is asked again."""
        self.shell, self._waiting = shell, None

    def commit(self, offsets: dict[tuple[str, int], int]) -> object:
        """Gives the token."""
        request = commit(
            self.group,
            offsets,
            member=self.member,
            generation=self.generation,
            instance=self.instance,
        )
        return self.shell.submit("offset_commit", request, version=9)


class StaticClient(ClassicClient):
    """It has an instance id, with which it takes its own place when it comes back.

    It is eager. A cooperative one that dies before it has joined again leaves what it let go to
    nobody until the next rebalance, as with Kafka: its return to a stable group begins none.
    """

    def __init__(
        self, shell: Shell, group: str, name: str, *, topics: tuple[str, ...] = ("t",)
    ) -> None:
        super().__init__(shell, group, name, topics=topics)
        self.instance = f"{group}-{name}"


class CooperativeClient(ClassicClient):
    """It reads on through a rebalance, and joins again when it has let go.

    And it is slow: what was answered to JoinGroup it takes when it is asked to act the next time,
    so that much can happen before its SyncGroup.
    """

    def __init__(
        self, shell: Shell, group: str, name: str, *, topics: tuple[str, ...] = ("t",)
    ) -> None:
        super().__init__(shell, group, name, topics=topics)
        self._joined: Any = None
        self._synced = ("", -1)

    def join(self) -> None:
        """Or go on with the join that was answered."""
        if self._joined is not None:
            joined, self._joined = self._joined, None
            super()._sync(joined)
            return
        self.is_stable = False
        request = join(self.group, self.member, session_ms=self.session_ms)
        request.protocols[0].name = "cooperative-sticky"
        request.protocols[0].metadata = owning_subscription(self.topics, self.owned)
        self._ask_to_join(request)

    def _sync(self, answer: Any) -> None:
        self._joined = answer

    def _deal(self, members: list[JoinGroupResponseMember]) -> dict[str, Owned]:
        """What somebody reads is given to nobody else, before it has let go."""
        reader: dict[tuple[str, int], str] = {}
        for one in members:
            for topic in decode_subscription(one.metadata).owned_partitions:
                for number in topic.partitions:
                    reader.setdefault((topic.topic, number), one.member_id)
        return {
            member: {place for place in given if reader.get(place, member) == member}
            for member, given in super()._deal(members).items()
        }

    def _take(self, given: Owned) -> None:
        self.is_stable = self.owned <= given
        self.owned, self._synced = given, (self.member, self.generation)

    def _failed(self, code: Any) -> None:
        owned = self.owned
        super()._failed(code)
        if code not in LOST:
            self.owned = owned

    def leave(self) -> Any:
        self._joined = None
        return super().leave()

    def crash(self) -> None:
        self._joined = None
        super().crash()

    def moved(self, shell: Shell) -> None:
        """A generation that nobody has synced in may be one that the next coordinator has not."""
        self._joined = None
        if not self.is_stable:
            member, generation = self._synced
            self.generation = generation if member == self.member else -1
        super().moved(shell)


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
        token = self.shell.submit("consumer_group_heartbeat", request, version=1)
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
        return self.shell.submit("consumer_group_heartbeat", request, version=1)

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
        return self.shell.submit("offset_commit", request, version=9)


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
