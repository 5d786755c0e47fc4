"""A shard among clients that send whatever they like, while topics come and go, its log refuses and
its coordinator fails over.

What is asked is refused with an operating error or answered, by a message that the wire can carry;
what is written can be read back; and whoever comes afterwards finds a shard that works.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from kits.groups.shard_clients import ClassicClient, ConsumerClient
from kits.groups.shard_hostile_requests import GROUPS, INT32_MAX, TOPICS, Draft, Drafts
from kits.groups.shard_kit import Shell
from kits.groups.shard_requests import offset_delete
from kits.groups.shard_topics import FakeTopics
from millstream.groups.errors import UnknownMember
from millstream.groups.records.entries import Producer, decode_batches, encode
from millstream.groups.settings import MigrationPolicy
from millstream.model.errors import OperatingError
from millstream.model.ids import ProducerEpoch, ProducerId
from millstream.shards.effects import Write
from millstream.testing.protocol_members.settings import WEEK_MS, MutableGroupSettings
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_groups import ListGroupsRequest

FOLLOWED = 6
"""So many clients go on with what they were answered."""
CALM_STEPS = 60
TIMES_MS = (10, 100, 500, 1_000, 1_000, 3_000, 6_000, 50_000)


class Hostile:
    """One step is one thing that happens, drawn by the seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.drafts = Drafts(self.random)
        self.settings = MutableGroupSettings(
            initial_rebalance_delay_ms=self.random.choice((0, 500)),
            consumer_assignment_interval_ms=self.random.choice((0, 1_000)),
        )
        self.shell = Shell(settings=self.settings, topics=FakeTopics(t=3, u=2))
        self.shell.on_append = reads_back
        self.asked: dict[object, Draft] = {}
        self.followed: dict[str, tuple[Draft, Any]] = {}
        """By member: what it asked last, and the answer."""
        self.seen: Counter[str] = Counter()
        self._types: dict[str, str] = {}

    def step(self) -> None:
        """Somebody asks, or something happens."""
        drafts = self.drafts
        submit = self._submit
        actions: list[tuple[Callable[[], None], float]] = [
            (self._follow, 30),
            (lambda: submit(drafts.consumer_heartbeat()), 20),
            (lambda: submit(drafts.join()), 20),
            (lambda: self.shell.pass_time(self.random.choice(TIMES_MS)), 12),
            (lambda: submit(drafts.sync()), 6),
            (lambda: submit(drafts.commit()), 5),
            (lambda: submit(drafts.heartbeat()), 4),
            (lambda: submit(drafts.leave()), 4),
            (lambda: submit(drafts.commit_as_nobody()), 2),
            (lambda: submit(drafts.commit_in_transaction()), 2),
            (self._administer, 6),
            (self._move_the_high_watermark, 5),
            (self._refuse_or_hold, 3),
            (self._change_a_topic, 2),
            (self._end_a_transaction, 1),
            (self._fail_over, 1),
            (self._expire, 1),
            (self._change_settings, 0.5),
        ]
        calls, weights = zip(*actions, strict=True)
        self.random.choices(calls, weights)[0]()
        self._check_descriptions()

    # -- clients -----------------------------------------------------------------------------

    def _submit(self, draft: Draft) -> None:
        """As it comes off the wire, in the newest version if its own has no room for it."""
        kind = type(draft.request)
        try:
            raw, version = draft.request.encode(draft.version), draft.version
        except ValueError:
            version = min(kind.VERSIONS[-1], 9)
            raw = draft.request.encode(version)
        request = kind.decode(memoryview(raw), version)
        token = self.shell.submit(draft.method, request, version=version)
        self.asked[token] = Draft(draft.method, request, version)

    def _follow(self) -> None:
        """One that was answered does what comes next."""
        if not self.followed:
            return
        member = self.random.choice(list(self.followed))
        asked, answer = self.followed[member]
        if asked.method == "consumer_group_heartbeat":
            self._submit(self.drafts.heartbeat_after(asked, answer))
        elif answer.error_code == ErrorCode.MEMBER_ID_REQUIRED or self.random.random() < 0.1:
            self._submit(self.drafts.join_again(asked, member))
        else:
            self._submit(self.drafts.sync_after(asked.request.group_id, answer))

    def _administer(self) -> None:
        shell, group = self.shell, self.drafts.group()
        calls: list[Callable[[], object]] = [
            lambda: shell.submit("delete_group", group),
            lambda: shell.submit("offset_delete", offset_delete(group, [("t", 0), ("u", 1)])),
            lambda: shell.submit("list_groups", ListGroupsRequest()),
            lambda: shell.submit("describe_group", group),
            lambda: shell.submit("consumer_group_describe", group),
            lambda: shell.submit(
                "offset_fetch", self.drafts.fetch(), is_stable=self.random.random() < 0.5
            ),
        ]
        self.random.choice(calls)()

    # -- the world ---------------------------------------------------------------------------

    def _move_the_high_watermark(self) -> None:
        shell = self.shell
        shell.is_refusing, shell.is_holding = False, self.random.random() < 0.3
        shell.advance(self.random.randint(shell.high_watermark, len(shell.log)))
        if not shell.is_holding:
            shell.advance()

    def _refuse_or_hold(self) -> None:
        if self.random.random() < 0.5:
            self.shell.is_refusing = True
        else:
            self.shell.is_holding = True

    def _change_a_topic(self) -> None:
        shell, name = self.shell, self.random.choice(TOPICS[:3])
        facts, is_deleted = shell.topics.by_name(name), False
        if facts is None:
            shell.topics.create(name, self.random.randint(1, 4))
        elif self.random.random() < 0.5:
            shell.topics.grow(name, facts.partition_count + 1)
        else:
            is_deleted = True
            shell.topics.delete(name)
            if self.random.random() < 0.5:
                shell.topics.create(name, 2)
            shell.shard.partitions_deleted([name])
        shell.shard.on_topics_changed([name], now_ms=shell.now_ms, wall_ms=shell.wall_ms)
        shell.drain()
        self.seen["topic deleted"] += is_deleted

    def _end_a_transaction(self) -> None:
        producer = Producer(ProducerId(self.random.randint(1, 2)), ProducerEpoch(0))
        self.shell.end_transaction(producer, is_commit=self.random.random() < 0.5)

    def _fail_over(self) -> None:
        shell = self.shell
        self.shell = shell.fail_over(keep=self.random.randint(shell.high_watermark, len(shell.log)))
        self.shell.on_append = reads_back
        self.asked.clear()
        self.seen["failover"] += 1

    def _expire(self) -> None:
        if self.random.random() < 0.3:
            self.shell.wall_ms += WEEK_MS + 1
        self.shell.expire()

    def _change_settings(self) -> None:
        draw = self.random.choice
        self.settings.group_size_max = draw((1, 2, 3, INT32_MAX))
        self.settings.consumer_group_size_max = draw((1, 2, 3, INT32_MAX))
        self.settings.migration_policy = draw(list(MigrationPolicy))

    # -- what must hold ----------------------------------------------------------------------

    def _check_descriptions(self) -> None:
        """At all that was answered."""
        answers = self.shell.answers
        for token in list(answers):
            answer, asked = answers.pop(token), self.asked.pop(token, None)
            if isinstance(answer, BaseException):
                assert isinstance(answer, OperatingError), (asked, answer)
                self.seen[type(answer).__name__] += 1
                if isinstance(answer, UnknownMember) and asked is not None:
                    self.followed.pop(getattr(asked.request, "member_id", ""), None)
            elif asked is not None:
                answer.encode(asked.version)
                self._answered(asked, answer)
        for one in self._groups():
            was, self._types[one.group_id] = self._types.get(one.group_id), one.group_type
            if was not in (None, one.group_type) and one.group_state != "Empty":
                self.seen["upgrade" if was == "classic" else "downgrade"] += 1

    def _answered(self, asked: Draft, answer: Any) -> None:
        code, group = getattr(answer, "error_code", ErrorCode.NONE), asked.request.group_id
        self.seen[asked.method if code == ErrorCode.NONE else ErrorCode(code).name] += 1
        if asked.method == "join_group":
            if code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                return
            self.drafts.saw(group, answer.member_id, answer.generation_id, is_classic=True)
        elif asked.method != "consumer_group_heartbeat" or answer.member_epoch <= 0:
            return
        else:
            self.drafts.saw(group, answer.member_id, answer.member_epoch, is_classic=False)
            before = self.followed.get(answer.member_id)
            if answer.assignment is None and before and before[0].method == asked.method:
                answer.assignment = before[1].assignment
        self.followed.pop(answer.member_id, None)
        self.followed[answer.member_id] = (asked, answer)
        while len(self.followed) > FOLLOWED:
            del self.followed[next(iter(self.followed))]

    def _groups(self) -> list[Any]:
        found: list[Any] = self.shell.answer("list_groups", ListGroupsRequest())
        return found

    # -- the end -----------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Deadlines have gone on: all were answered, nobody stays, and others are served."""
        shell = self.shell
        shell.is_refusing = shell.is_holding = False
        shell.advance()
        shell.pass_time(2 * INT32_MAX)
        self._check_descriptions()
        assert not self.asked, f"never answered: {list(self.asked.values())[:2]}"
        states = {one.group_id: one.group_state for one in self._groups()}
        assert set(states.values()) <= {"Empty"}, f"a session did not end: {states}"
        self.settings.group_size_max = self.settings.consumer_group_size_max = INT32_MAX
        self._serve(shell)
        self._serve(shell.fail_over())

    def _serve(self, shell: Shell) -> None:
        """One of each protocol in each group."""
        if shell.topics.by_name("t") is None:
            shell.topics.create("t", 1)
        for group in sorted(set(GROUPS)):
            old = ClassicClient(shell, group, "old")
            for _ in range(CALM_STEPS):
                if not old.is_waiting:
                    old.heartbeat() if old.is_stable else old.join()
                shell.pass_time(500)
                old.poll()
            facts = shell.topics.by_name("t")
            assert facts is not None
            assert old.owned == {("t", n) for n in range(facts.partition_count)}, old.last_error
            old.leave()
            shell.pass_time(500)
            new = ConsumerClient(shell, group, "new")
            for _ in range(CALM_STEPS):
                new.heartbeat()
                shell.pass_time(500)
            wanted = {(facts.topic_id, n) for n in range(facts.partition_count)}
            assert new.owned == wanted, new.last_error
            new.leave()


def reads_back(write: Write) -> None:
    """What is written is what the next coordinator reads."""
    if write.entries:
        raw = encode(list(write.entries), now_ms=1, producer=write.producer)
        assert [one.what for one in decode_batches(raw)] == list(write.entries)
