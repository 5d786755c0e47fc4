"""A shard with consumers that come, go, are silent and die, a log that refuses, a high watermark
that lags, and coordinators that fail over: whatever happens, I-27 to I-31 hold.

One step is one method, drawn by a seed (`step`) or by hypothesis. Committed offsets are numbers
that only grow, so that one which goes back is seen at once.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from kits.groups.shard_clients import ClassicClient, ConsumerClient, code_of
from kits.groups.shard_kit import LogFull, Shell
from kits.groups.shard_requests import commit, fetch, offset_delete
from kits.groups.shard_topics import FakeTopics
from millstream.testing.protocol_members.settings import WEEK_MS, MutableGroupSettings
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_groups import ListGroupsRequest

GROUPS = ("a", "b")
TOPICS = ("t", "u")
SESSION_MS = 10_000
SILENCE_MAX_MS = 20_000
"""After so long without an answer a consumer of the new protocol stops reading by itself: it is its
rebalance time-out, which is shorter than its session."""
CALM_MS = 180_000
PARTITIONS_MAX = 4

Client = ClassicClient | ConsumerClient
Place = tuple[str, str, int]
"""Group, topic, partition."""

Kinds = tuple[tuple[type[ClassicClient] | type[ConsumerClient], str], ...]
BOTH: Kinds = ((ClassicClient, "old"), (ConsumerClient, "new"))


class Credentials(NamedTuple):
    """With which a client once could commit."""

    member: str
    generation: int


class Broken(AssertionError):
    """An invariant does not hold."""


class World:
    """See the module."""

    def __init__(self, seed: int = 0, *, kinds: Kinds = BOTH, **settings: Any) -> None:
        self.random = Random(seed)
        given = {"initial_rebalance_delay_ms": 500, "consumer_assignment_interval_ms": 0}
        self.shell = Shell(
            settings=MutableGroupSettings(**(given | settings)), topics=FakeTopics(t=3, u=2)
        )
        self.clients: list[Client] = []
        for group in GROUPS:
            for kind, name in kinds:
                for number in range(2):
                    client = kind(self.shell, group, f"{name}-{number}", topics=TOPICS)
                    self.clients.append(client)
        self.running: set[int] = set()
        self.past: dict[int, list[Credentials]] = {n: [] for n in range(len(self.clients))}
        self.left: set[Credentials] = set()
        self.deleted: dict[str, int] = {}
        """Groups that were deleted, and the last value that any commit had then."""
        self.floor: dict[Place, int] = {}
        self.may_be_gone: dict[Place, int] = {}
        """What somebody has tried to delete, and the last value that any commit had then."""
        self.commits: dict[object, dict[Place, int]] = {}
        self.fetches: dict[object, tuple[str, dict[Place, int], int]] = {}
        """Asked for stable offsets and not answered yet; the floor then, and what was deleted."""
        self.value = 0
        self.seen: dict[str, int] = {}
        self.was_refused = False
        self._types: dict[str, str] = {}

    # -- one step ----------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens."""
        actions: list[tuple[Callable[[], None], int]] = [
            (lambda: self.act(self._any_client()), 40),
            (lambda: self.pass_time(self.random.choice((100, 1_000, 3_000))), 20),
            (lambda: self.commit(self._any_client()), 12),
            (lambda: self.commit_with_past(self._any_client()), 8),
            (lambda: self.fetch(self.random.choice(GROUPS), is_stable=self._coin()), 8),
            (lambda: self.leave(self._any_client()), 4),
            (lambda: self.crash(self._any_client()), 2),
            (lambda: self.commit_as_nobody(self.random.choice(GROUPS)), 2),
            (lambda: self.delete_group(self.random.choice(GROUPS)), 2),
            (lambda: self.delete_offset(self.random.choice(GROUPS)), 1),
            (self.refuse_for_once, 2),
            (self.hold, 2),
            (lambda: self.advance(self.random.random()), 6),
            (lambda: self.fail_over(self.random.random()), 2),
            (lambda: self.expire(is_late=self.random.random() < 0.3), 1),
            (self.pass_a_long_time, 1),
            (self.grow, 1),
            (lambda: self.lose_the_end(self.random.choice(GROUPS)), 2),
            (lambda: self.stop(self.random.choice(GROUPS)), 1),
        ]
        names, weights = zip(*actions, strict=True)
        self.random.choices(names, weights)[0]()

    def _any_client(self) -> int:
        return self.random.randrange(len(self.clients))

    def _coin(self) -> bool:
        return self.random.random() < 0.5

    def _count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    # -- consumers ---------------------------------------------------------------------------

    def act(self, number: int) -> None:
        """What a client does next: it joins, or says that it is there."""
        client = self.clients[number]
        self.running.add(number)
        if not client.is_waiting:
            if isinstance(client, ConsumerClient):
                client.heartbeat()
            elif not client.is_stable or client.wants_rebalance:
                client.join()
            elif client.heartbeat() != ErrorCode.NONE:
                self._count("rebalance")
        self.check()

    def commit(self, number: int) -> None:
        """Of what it owns."""
        client = self.clients[number]
        places = self.owned_by(client)
        if places and not client.is_waiting:
            self._submit_commit(client.commit, places)
        self.check()

    def commit_with_past(self, number: int) -> None:
        """With what the client once was, for partitions that others read by now (I-28).

        One that has gone on to another generation, or has left; one that died may be a member.
        """
        client = self.clients[number]
        others = [one for one in self.clients if one is not client and one.group == client.group]
        taken = {place for one in others for place in self.owned_by(one)}
        now = self._credentials(client)
        past = [
            one
            for one in self.past[number]
            if one in self.left or (one.member == now.member and one.generation < now.generation)
        ]
        if not past or not taken:
            return
        by = self.random.choice(past)
        place = self.random.choice(sorted(taken))
        self.value += 1
        token = self.shell.submit(
            "offset_commit",
            commit(
                client.group, {place[1:]: self.value}, member=by.member, generation=by.generation
            ),
            version=9,
        )
        self._count("past")
        answer = self.shell.answers.pop(token, None)
        if answer is None or code_of_commit(answer) == ErrorCode.NONE:
            raise Broken(f"I-28 {by} has committed {place}, which is another's: {answer}")
        self.check()

    def commit_as_nobody(self, group: str) -> None:
        """As an administrator does."""
        place = (group, self.random.choice(TOPICS), 0)

        def submit(offsets: dict[tuple[str, int], int]) -> object:
            return self.shell.submit("offset_commit", commit(group, offsets), version=9)

        self._submit_commit(submit, {place})
        self.check()

    def _submit_commit(
        self, submit: Callable[[dict[tuple[str, int], int]], object], places: set[Place]
    ) -> None:
        made: dict[Place, int] = {}
        for place in sorted(places):
            self.value += 1
            made[place] = self.value
        token = submit({place[1:]: value for place, value in made.items()})
        self.commits[token] = made

    def leave(self, number: int) -> None:
        client = self.clients[number]
        self._remember(number)
        if client.member and not client.is_waiting:
            by = self._credentials(client)
            answer = self.shell.answers.pop(client.leave(), None)
            # A consumer of the new protocol has the same id when it comes back.
            if answer is not None and isinstance(client, ClassicClient):
                self.left.add(by)
        self.running.discard(number)
        self.check()

    def crash(self, number: int) -> None:
        self._remember(number)
        self.clients[number].crash()
        self.running.discard(number)
        self.check()

    def stop(self, group: str) -> None:
        """All of its consumers go, and for long enough that it is empty."""
        for number, client in enumerate(self.clients):
            if client.group == group:
                (self.leave if self._coin() else self.crash)(number)
        self.pass_time(60_000)
        self.fetch(group, is_stable=False)
        self.delete_group(group)
        self.fetch(group, is_stable=False)

    # -- others ------------------------------------------------------------------------------

    def fetch(self, group: str, *, is_stable: bool) -> None:
        """I-29."""
        wanted = [(topic, n) for topic in TOPICS for n in range(2)]
        before = (group, dict(self.floor), self.deleted.get(group, -1))
        token = self.shell.submit("offset_fetch", fetch(group, wanted), is_stable=is_stable)
        self.fetches[token] = before
        if not is_stable and token not in self.shell.answers:
            raise Broken("a fetch waits that need not")
        self._check_fetches()
        self._count("fetch")

    def _check_fetches(self) -> None:
        for token in [one for one in self.fetches if one in self.shell.answers]:
            group, floor, deleted = self.fetches.pop(token)
            for topic in self.shell.answers.pop(token).topics:
                for one in topic.partitions:
                    if one.error_code == ErrorCode.NONE:
                        place = (group, topic.name, one.partition_index)
                        self._saw(place, one.committed_offset, floor.get(place, -1), deleted)

    def _saw(self, place: Place, offset: int, floor: int, deleted: int) -> None:
        if offset < 0:
            if floor >= 0 and place not in self.may_be_gone:
                raise Broken(f"I-29 {place} had {floor} and has nothing")
        elif offset <= deleted:
            raise Broken(f"I-29 {place} was deleted and has {offset}")
        elif offset < floor:
            raise Broken(f"I-29 {place} went back from {floor} to {offset}")
        else:
            self.floor[place] = max(offset, self.floor.get(place, -1))

    def delete_group(self, group: str) -> None:
        self._may_go(group)
        answer = self.shell.answers.pop(self.shell.submit("delete_group", group), None)
        self._count("delete")
        if answer is not None and code_of(answer) == ErrorCode.NONE:
            self._count("deleted")
            self.deleted[group] = self.value
            if any(one.group_id == group for one in self.list()):
                raise Broken(f"I-29 {group} was deleted and is there")
        self.check()

    def delete_offset(self, group: str) -> None:
        self._may_go(group)
        self.shell.submit("offset_delete", offset_delete(group, [("t", 0)]))
        self.check()

    def _may_go(self, group: str | None = None) -> None:
        for one in GROUPS if group is None else (group,):
            for topic in TOPICS:
                for partition in range(PARTITIONS_MAX):
                    self.may_be_gone[one, topic, partition] = self.value

    def expire(self, *, is_late: bool) -> None:
        self._may_go()
        if is_late:
            self.shell.wall_ms += WEEK_MS
        self.shell.expire()
        self._count("expire")
        self.check()

    def grow(self) -> None:
        """A topic gets a partition."""
        facts = self.shell.topics.by_name("u")
        if facts is not None and facts.partition_count < PARTITIONS_MAX:
            self.shell.topics.grow("u", facts.partition_count + 1)
            self.shell.shard.on_topics_changed(
                ["u"], now_ms=self.shell.now_ms, wall_ms=self.shell.wall_ms
            )
            self.shell.drain()
        self.check()

    # -- faults and time ---------------------------------------------------------------------

    def refuse_for_once(self) -> None:
        """The next writes are refused, until something else is asked for."""
        self.shell.is_refusing = self.was_refused = True
        for _ in range(2):
            self.act(self._any_client())
        self.commit(self._any_client())
        self.shell.is_refusing = False
        self._count("refuse")

    def hold(self) -> None:
        """The high watermark does not follow."""
        self.shell.is_holding = True

    def advance(self, part: float) -> None:
        """It moves on, some of the way or all of it."""
        shell = self.shell
        behind = len(shell.log) - shell.high_watermark
        if part > 0.5:
            shell.is_holding = False
        shell.advance(shell.high_watermark + round(behind * min(1.0, part * 2)))
        self.check()

    def fail_over(self, part: float) -> None:
        """Another coordinator, with as much of the log as it has; whoever waits asks it again."""
        before = self.shell
        behind = len(before.log) - before.high_watermark
        self.shell = before.fail_over(keep=before.high_watermark + round(behind * part))
        self.commits.clear()
        self.fetches.clear()
        # A classic member that has left is in the log until a rebalance is complete.
        self.left.clear()
        for number, client in enumerate(self.clients):
            self._remember(number)
            client.moved(self.shell)
        self._count("failover")
        self.check()

    def lose_the_end(self, group: str) -> None:
        """What is written now does not survive; somebody looks before and after."""
        self.hold()
        for number, client in enumerate(self.clients):
            if client.group == group:
                self.commit(number)
        self.commit_as_nobody(group)
        self.fetch(group, is_stable=False)
        self.fail_over(0.0)
        self.fetch(group, is_stable=False)

    def pass_time(self, ms: int) -> None:
        self.shell.pass_time(ms)
        self.check()

    def pass_a_long_time(self) -> None:
        """Sessions end."""
        self.pass_time(30_000)
        self._count("long")

    # -- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        """After every step."""
        self._check_types()
        for number, client in enumerate(self.clients):
            client.poll()
            self._remember(number)
        for token in [one for one in self.commits if one in self.shell.answers]:
            made = self.commits.pop(token)
            if code_of_commit(self.shell.answers.pop(token)) == ErrorCode.NONE:
                for place, value in made.items():
                    self.floor[place] = max(value, self.floor.get(place, -1))
                    if value > self.may_be_gone.get(place, value):
                        del self.may_be_gone[place]
        self._check_fetches()
        self._check_owners()

    def _check_types(self) -> None:
        """Whether a group with members has changed its protocol."""
        for one in self.list():
            was, self._types[one.group_id] = self._types.get(one.group_id), one.group_type
            if was not in (None, one.group_type) and one.group_state != "Empty":
                self._count("upgrade" if was == "classic" else "downgrade")

    def _check_owners(self) -> None:
        owners: dict[Place, Client] = {}
        for client in self.clients:
            for place in self.owned_by(client):
                other = owners.setdefault(place, client)
                if other is not client:
                    raise Broken(f"I-27 {place} is read by {other.name} and by {client.name}")

    def owned_by(self, client: Client) -> set[Place]:
        """What it reads: nothing any more when it has not been answered for too long."""
        silent_ms = self.shell.now_ms - client.last_beat_ms
        if isinstance(client, ClassicClient):
            owned = client.owned if silent_ms < client.session_ms else set()
            return {(client.group, topic, partition) for topic, partition in owned}
        if silent_ms >= SILENCE_MAX_MS:
            return set()
        facts = {topic_id: self.shell.topics.by_id(topic_id) for topic_id, _ in client.owned}
        named = {topic_id: one.name for topic_id, one in facts.items() if one is not None}
        return {(client.group, named[topic_id], n) for topic_id, n in client.owned}

    def _credentials(self, client: Client) -> Credentials:
        if isinstance(client, ClassicClient):
            return Credentials(client.member, client.generation)
        return Credentials(client.member, client.epoch)

    def _remember(self, number: int) -> None:
        now = self._credentials(self.clients[number])
        past = self.past[number]
        if now.generation > 0 and now.member and (not past or past[-1] != now):
            past.append(now)

    # -- the end -----------------------------------------------------------------------------

    def calm_down(self) -> None:
        """I-30, I-31: without faults every group becomes stable, and whoever is alive stays."""
        shell = self.shell
        shell.is_refusing = shell.is_holding = False
        shell.advance()
        end_ms = shell.now_ms + CALM_MS
        while shell.now_ms < end_ms:
            for number in sorted(self.running):
                client = self.clients[number]
                self.act(number)
                is_late = shell.now_ms > end_ms - CALM_MS // 3
                if is_late and client.last_error == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise Broken(f"I-30 {client.name} was alive and was removed")
            self.pass_time(1_000)
        self._check_calm()

    def _check_calm(self) -> None:
        states = {one.group_id: one.group_state for one in self.list()}
        for group in GROUPS:
            state = states.get(group)
            living = [self.clients[n] for n in self.running if self.clients[n].group == group]
            wanted = ("Stable",) if living else ("Empty", None)
            if state not in wanted:
                raise Broken(f"I-31 {group} is {state} with {[one.name for one in living]}")
            owned = [self.owned_by(one) for one in living]
            count = sum(self._partition_count(topic) for topic in TOPICS)
            if living and sum(map(len, owned)) != count:
                raise Broken(f"I-31 of {count} partitions of {group} are read: {owned}")

    def _partition_count(self, topic: str) -> int:
        facts = self.shell.topics.by_name(topic)
        return 0 if facts is None else facts.partition_count

    def list(self) -> list[Any]:
        found: list[Any] = self.shell.answer("list_groups", ListGroupsRequest())
        return found

    def check_reload(self) -> None:
        """What is known is what the next coordinator reads."""
        if self.shell.is_holding or self.was_refused:
            return
        self.shell.advance()
        before, after = (picture(one) for one in (self.shell, self.shell.fail_over()))
        # A rebalance of a classic group is in memory only: read again it has not begun.
        after = {key: value for key, value in after.items() if key in before}
        if before != after:
            raise Broken(f"I-29 read again it is another state: {before} {after}")


def picture(shell: Shell) -> dict[tuple[str, str], Any]:
    """What is durable of a shard: offsets, and groups that are not in a rebalance in memory."""
    shown: dict[tuple[str, str], Any] = {}
    for one in shell.answer("list_groups", ListGroupsRequest()):
        offsets = shell.answer("offset_fetch", fetch(one.group_id), is_stable=False)
        shown["offsets", one.group_id] = sorted(
            (topic.name, part.partition_index, part.committed_offset)
            for topic in offsets.topics
            for part in topic.partitions
        )
        if one.group_type == "consumer":
            shown[one.group_id] = shell.answer("consumer_group_describe", one.group_id)
        elif one.group_state == "Stable":
            shown[one.group_id] = shell.answer("describe_group", one.group_id)
    return {key: value for key, value in shown.items() if value}


def code_of_commit(answer: Any) -> Any:
    """Of the first partition, or of the refusal."""
    if isinstance(answer, LogFull) or not hasattr(answer, "topics"):
        return code_of(answer)
    return answer.topics[0].partitions[0].error_code
