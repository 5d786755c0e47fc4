"""A classic group under clients of all manners, and a record of what each was told.

The record is the simplest that can be written: which assignment was given out under which
generation, who was told to be who, when somebody was last heard. From it every answer is judged
(I-27, I-28, I-30, I-36), and at the end the well-behaved clients must find together (I-31).
Hypothesis drives it, and seeds drive it where planted bugs have to be found.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from kits.groups.classic_kit import (
    REBALANCE_MS,
    SESSION_MS,
    LogRefused,
    Settings,
    World,
    subscription,
)
from millstream.groups.classic.group import GroupState
from millstream.groups.classic.join_group import NEW_MEMBER_TIMEOUT_MS
from millstream.groups.errors import (
    FencedInstance,
    IllegalGeneration,
    UnknownMember,
)
from millstream.model.errors import OperatingError
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.join_group import JoinGroupResponse
from millstream.wire.messages.sync_group import SyncGroupResponse

JOIN_OR_SYNC = (JoinGroupResponse, SyncGroupResponse)
PARTITIONS = 12
SETTLE_STEP_MS = 1_000
SETTLE_LIMIT_MS = NEW_MEMBER_TIMEOUT_MS + 10 * (SESSION_MS + REBALANCE_MS)
"""Abandoned members go one after the other, and each may cost a rebalance."""
PROTOCOLS = [
    {"range": subscription("t")},
    {"range": subscription("t"), "sticky": subscription("t")},
    {"sticky": subscription("t", "u"), "range": subscription("t", "u")},
    {"sticky": subscription("u")},
]


class Broken(AssertionError):
    """A promise of the group protocol was."""


def demand(holds: bool, promise: str, **facts: object) -> None:
    if not holds:
        raise Broken(f"{promise}: {facts}")


@dataclass(eq=False)
class Client:
    """A consumer as it should be; how far it has come, and what it waits for."""

    name: str
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    is_member: bool = False
    is_stopped: bool = False
    is_lazy: bool = False
    """It joins and beats, but never asks for its assignment."""
    protocols: dict[str, bytes] = field(default_factory=lambda: PROTOCOLS[0])
    version: int = 9
    join_token: object = None
    sync_token: object = None
    told_members: list[str] = field(default_factory=list)
    protocol: tuple[str | None, str | None] = ("consumer", "range")

    @property
    def waits(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def forget(self) -> None:
        self.member_id, self.generation, self.is_member = "", -1, False


class Driver:
    """Steps of clients, of the log and of time; each is judged at once."""

    def __init__(self) -> None:
        self.world = World(Settings(group_size_max=6))
        self.clients: list[Client] = []
        self.nonce = 0
        self.given: dict[int, int] = {}
        """Generation to the nonce of its only assignment."""
        self.owners: dict[tuple[int, int], str] = {}
        """(generation, partition) to who has it: the instance, or the member."""
        self.names: dict[str, str] = {}
        """Member id to instance, as they were told."""
        self.current: dict[str, str] = {}
        """Instance to the member id that counts."""
        self.newest = 0
        """Generation."""
        self.gone: set[str] = set()
        """Have left this coordinator."""
        self.heard_ms: dict[str, int] = {}
        self.asked_by: dict[object, str] = {}
        """The member of a JoinGroup or SyncGroup."""
        self.judged: set[object] = set()

    # -- well-behaved clients ------------------------------------------------------------------

    def arrive(self, instance: int | None, *, protocols: int, version: int) -> None:
        """A consumer starts; with the instance of another one, it replaces it."""
        name = None if instance is None else f"i{instance}"
        if name is not None:
            for other in self.clients:
                other.is_stopped = other.is_stopped or other.instance == name
            version = max(version, 5)
        client = Client(f"c{len(self.clients)}", name, version=version)
        client.protocols = PROTOCOLS[protocols]
        self.clients.append(client)
        self.step(client)

    def step(self, client: Client) -> None:
        """What a good consumer does next."""
        self.receive(client)
        if client.is_stopped or client.waits:
            return
        if client.is_member:
            self.beat(client)
        elif client.generation >= 0 and client.is_lazy:
            self.beat(client)
            client.is_stopped = client.generation < 0
        elif client.generation >= 0:
            self.send_sync(client)
        else:
            self.send_join(client)
        self.receive(client)

    def send_join(self, client: Client) -> None:
        """Also in the middle of something else: then the consumer starts over."""
        client.is_member, client.generation, client.sync_token = False, -1, None
        client.join_token = self.world.join(
            client.member_id,
            instance=client.instance,
            protocols=client.protocols,
            version=client.version,
            client=client.name,
        )
        self.asked_by[client.join_token] = client.member_id
        self.judge()

    def send_sync(self, client: Client) -> None:
        """The leader deals the partitions out anew each time it asks."""
        assignments = {}
        if client.told_members:
            self.nonce += 1
            for at, member_id in enumerate(client.told_members):
                mine = range(at, PARTITIONS, len(client.told_members))
                told = f"{client.generation}:{self.nonce}:{','.join(map(str, mine))}"
                assignments[member_id] = told.encode()
        client.sync_token = self.world.sync(
            client.member_id,
            client.generation,
            assignments,
            instance=client.instance,
            protocol=client.protocol,
        )
        self.asked_by[client.sync_token] = client.member_id
        self.judge()

    def beat(self, client: Client) -> None:
        who = (client.member_id, client.generation)
        code = self.world.heartbeat(*who, instance=client.instance)
        self.accepted(*who, client.instance, is_taken=code is ErrorCode.NONE, what="heartbeat")
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.record_contact(client.member_id)
            client.is_member, client.generation = False, -1
        elif code is IllegalGeneration:
            client.is_member, client.generation = False, -1
        elif code is UnknownMember:
            client.forget()
        elif code is FencedInstance:
            client.is_stopped = True

    def commit(self, client: Client) -> None:
        who = (client.member_id, client.generation)
        refused = self.world.commit(*who, instance=client.instance)
        if client.generation >= 0:
            self.accepted(*who, client.instance, is_taken=refused is None, what="commit")

    def leave(self, client: Client) -> None:
        """It says goodbye and hears nothing any more."""
        client.is_stopped = True
        if client.member_id:
            token = self.world.leave(client.member_id)
            if not self.world.waits(token) and self.world.left(token) == [ErrorCode.NONE]:
                self.gone.add(client.member_id)
        self.judge()

    def receive(self, client: Client) -> None:
        """Answers that have come."""
        world = self.world
        if client.join_token is not None and not world.waits(client.join_token):
            answer = world.answers[client.join_token]
            client.join_token = None
            self._receive_join(client, answer)
        if client.sync_token is not None and not world.waits(client.sync_token):
            answer = world.answers[client.sync_token]
            client.sync_token = None
            self._receive_sync(client, answer)

    def _receive_join(self, client: Client, answer: Any) -> None:
        code = None if isinstance(answer, OperatingError) else answer.error_code
        if code == ErrorCode.NONE:
            client.member_id, client.generation = answer.member_id, answer.generation_id
            is_leader = answer.leader == answer.member_id and not answer.skip_assignment
            client.told_members = [one.member_id for one in answer.members] if is_leader else []
            client.protocol = ("consumer", answer.protocol_name)
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            client.forget()
        elif code not in (None, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            client.is_stopped = True

    def _receive_sync(self, client: Client, answer: Any) -> None:
        client.generation = client.generation if client.generation >= 0 else -1
        if not isinstance(answer, OperatingError) and answer.error_code == ErrorCode.NONE:
            client.is_member = True
        elif isinstance(answer, UnknownMember) or (
            not isinstance(answer, OperatingError)
            and answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        ):
            client.forget()
        elif isinstance(answer, FencedInstance):
            client.is_stopped = True
        else:
            client.is_member, client.generation = False, -1

    # -- others --------------------------------------------------------------------------------

    def get_lazy(self, client: Client) -> None:
        """A static one that comes back need not ask: its predecessor has."""
        has_asked = client.is_member or client.sync_token is not None
        client.is_lazy = not has_asked and client.instance is None

    def rogue(self, what: int, member_id: str, generation: int, instance: str | None) -> None:
        """Any request with anybody's names."""
        world = self.world
        if what == 0:
            code = world.heartbeat(member_id, generation, instance=instance)
            self.accepted(
                member_id, generation, instance, is_taken=code is ErrorCode.NONE, what="heartbeat"
            )
            if code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.record_contact(member_id)
        elif what == 1:
            refused = world.commit(member_id, generation, instance=instance)
            if generation >= 0:
                self.accepted(
                    member_id, generation, instance, is_taken=refused is None, what="commit"
                )
        elif what == 2:
            token = world.sync(member_id, generation, instance=instance, version=4)
            is_taken = world.waits(token) or world.code(token) is ErrorCode.NONE
            self.asked_by[token] = member_id
            self.accepted(member_id, generation, instance, is_taken=is_taken, what="sync")
        elif member_id:
            self.asked_by[world.join(member_id, instance=instance)] = member_id
        self.judge()

    def any_member(self, chance: Random) -> tuple[str, int, str | None]:
        """Somebody's names, mixed."""
        ids = ["", "nobody", *self.names]
        instances = [None, None, *self.current, "nobody"]
        member_id = chance.choice(ids)
        instance = chance.choice([self.names.get(member_id) or None, chance.choice(instances)])
        return member_id, self.newest + chance.choice([0, 0, 0, -1, 1]), instance

    # -- log and time --------------------------------------------------------------------------

    def acknowledge(self) -> None:
        self.world.acknowledge(1)
        self.judge()

    def refuse(self) -> None:
        if self.world.held:
            before = {one.member_id for one in self.world.group.members}
            self.world.refuse()
            for one in self.world.group.members:
                if one.member_id not in before:  # it has its place back, and a session
                    self.record_contact(one.member_id)
            self.judge()

    def fail_over(self) -> None:
        """What is not in the log is forgotten, and sessions begin anew."""
        world = self.world
        world.fail_over()
        last = world.log[-1] if world.log else None
        members = last.members if last is not None else []
        self.newest = 0 if last is None else last.generation
        self.current = {
            one.group_instance_id: one.member_id for one in members if one.group_instance_id
        }
        self.gone.clear()
        for client in self.clients:
            # Which members have sent SyncGroup is not in the log, so none is waited for.
            client.is_stopped = client.is_stopped or client.is_lazy
        self.heard_ms = {one.member_id: world.now_ms for one in members}
        for one in members:
            # What the next coordinator thinks that they work by is what they were told.
            told = bytes(one.assignment).decode().split(":")
            first = self.given.get(self.newest)
            demand(
                not told[0] or first in (None, int(told[1])),
                "I-27 another assignment of the generation is loaded",
                told=told,
                first=first,
            )
        self.judge()

    def resize(self, size: int) -> None:
        self.world.settings.group_size_max = size

    def pass_ms(self, by_ms: int) -> None:
        """Members of a stable group that are alive and know their assignment stay (I-30)."""
        world, core = self.world, self.world.group._core
        safe = set()
        if world.group.state is GroupState.STABLE and not core.pending_sync:
            end_ms = world.now_ms + by_ms
            safe = {
                one.member_id
                for one in core.roster
                if not one.is_new and self.heard_ms.get(one.member_id, 0) + SESSION_MS > end_ms
            }
        world.pass_ms(by_ms)
        left = safe - core.roster.ids
        demand(not left, "I-30 a living member was removed", left=left)
        self.judge()

    # -- judging -------------------------------------------------------------------------------

    def record_contact(self, member_id: str, at_ms: int | None = None) -> None:
        at_ms = self.world.now_ms if at_ms is None else at_ms
        self.heard_ms[member_id] = max(at_ms, self.heard_ms.get(member_id, 0))

    def accepted(
        self,
        member_id: str,
        generation: int,
        instance: str | None,
        *,
        is_taken: bool,
        what: str,
    ) -> None:
        """I-28: taken only from who belongs to the newest generation and is not replaced."""
        if not is_taken:
            return
        self.record_contact(member_id)
        demand(
            generation == self.newest,
            f"I-28 {what} of another generation",
            generation=generation,
            newest=self.newest,
        )
        demand(member_id in self.names, f"I-28 {what} of a stranger", member_id=member_id)
        demand(member_id not in self.gone, f"I-28 {what} of one who left", member_id=member_id)
        if instance is not None:
            demand(
                self.current.get(instance) == member_id,
                f"I-28 {what} of a fenced instance",
                member_id=member_id,
                instance=instance,
                current=self.current,
            )

    def judge(self) -> None:
        """Every answer that is new, then the members that are still there."""
        world = self.world
        for token in [one for one in world.answers if one not in self.judged]:
            self.judged.add(token)
            self._judge_answer(token, world.answers[token])
        self._judge_sessions()

    def _judge_answer(self, token: object, answer: Any) -> None:
        asked_by = self.asked_by.get(token)
        code = answer.error_code if isinstance(answer, JOIN_OR_SYNC) else None
        has_waited = code == ErrorCode.NONE or (
            isinstance(answer, SyncGroupResponse) and code == ErrorCode.REBALANCE_IN_PROGRESS
        )
        if asked_by is not None and (has_waited or isinstance(answer, LogRefused)):
            # Whoever has waited for us has a session from the answer on.
            self.record_contact(asked_by, self.world.answered_ms.get(token, 0))
        if code == ErrorCode.NONE and isinstance(answer, JoinGroupResponse):
            self._judge_join(answer, self.world.answered_ms[token])
        elif code == ErrorCode.NONE:
            self._judge_assignment(bytes(answer.assignment))

    def _judge_join(self, answer: JoinGroupResponse, at_ms: int) -> None:
        demand(
            answer.generation_id >= self.newest,
            "I-28 the generation went back",
            told=answer.generation_id,
            newest=self.newest,
        )
        self.newest = answer.generation_id
        instances = {str(one.member_id): one.instance_id or "" for one in self.world.group.members}
        instance = instances.get(answer.member_id, "")
        self.names[answer.member_id] = instance
        self.record_contact(answer.member_id, at_ms)
        if instance:
            self.current[instance] = answer.member_id
            # In a stable group nothing else will write it: after a failover it would be fenced.
            is_stable = self.world.group.state is GroupState.STABLE
            written = self.world.log[-1].members if is_stable else []
            demand(
                not is_stable or answer.member_id in [one.member_id for one in written],
                "I-28 a static member was told an id that is not in the log",
                member_id=answer.member_id,
            )
        for one in answer.members:
            # Static members that did not join are in the generation, with a session of their own.
            self.names.setdefault(one.member_id, one.group_instance_id or "")
            if not answer.skip_assignment:
                self.record_contact(one.member_id, at_ms)

    def _judge_assignment(self, told: bytes) -> None:
        if not told:
            return  # a rogue led the group, or the leader did not know of it
        generation, nonce, partitions = told.decode().split(":")
        demand(
            any(
                record.generation == int(generation)
                and told in [bytes(one.assignment) for one in record.members]
                for record in self.world.log
            ),
            "I-27 an assignment that is not in the log",
            told=told,
        )
        demand(
            int(generation) == self.newest,
            "I-27 an assignment of another generation",
            told=told,
            newest=self.newest,
        )
        only = self.given.setdefault(int(generation), int(nonce))
        demand(only == int(nonce), "I-27 two assignments of one generation", told=told, first=only)
        for partition in partitions.split(","):
            if partition:
                owner = self.owners.setdefault((int(generation), int(partition)), told.decode())
                demand(owner == told.decode(), "I-27 a partition of two members", told=told)

    def _judge_sessions(self) -> None:
        """I-30: every member of the group sent something lately, or waits."""
        now_ms = self.world.now_ms
        for member in self.world.group.members:
            if member.is_awaiting_join or member.sync_caller is not None:
                self.record_contact(member.member_id)
                continue
            last_ms = self.heard_ms.get(member.member_id)
            demand(
                last_ms is not None and now_ms - last_ms <= SESSION_MS,
                "I-30 a member is kept past its session",
                member_id=member.member_id,
                last_ms=last_ms,
                now_ms=now_ms,
            )

    # -- the end -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Faults stop; living clients find together, and nobody else is in the group (I-31)."""
        world = self.world
        self.resize(100)
        for client in self.clients:
            if client.is_lazy and client.generation < 0 and not client.waits:
                client.is_stopped = True
            client.protocols = PROTOCOLS[0] if "range" in client.protocols else client.protocols
        end_ms = world.now_ms + SETTLE_LIMIT_MS
        while not self._is_stable():
            demand(
                world.now_ms < end_ms,
                "I-31 the group does not settle",
                state=world.group.state,
                members=[m.member_id for m in world.group.members],
                clients=self.clients,
            )
            for client in self.clients:
                self.step(client)
            world.acknowledge()
            self.judge()
            self.pass_ms(SETTLE_STEP_MS)
            world.acknowledge()
            self.judge()
        unanswered = [token for token in world.callers if world.waits(token)]
        demand(not unanswered, "I-36 requests without an answer", tokens=unanswered)

    def _is_stable(self) -> bool:
        living = [one for one in self.clients if not (one.is_stopped or one.is_lazy)]
        group = self.world.group
        if not living:
            return group.state is GroupState.EMPTY and not self.world.held
        return (
            group.state is GroupState.STABLE
            and all(client.is_member and not client.waits for client in living)
            and {one.member_id for one in group.members} == {one.member_id for one in living}
            and {client.generation for client in living} == {group.generation_id}
        )


def random_run(seed: int, steps: int) -> None:
    """The same steps as Hypothesis takes, chosen by a seed."""
    chance, driver = Random(seed), Driver()
    for _ in range(steps):
        random_step(driver, chance)
    driver.settle()


def random_step(driver: Driver, chance: Random) -> None:
    """One of all that can happen; mostly good clients go on."""
    client = chance.choice(driver.clients) if driver.clients else None
    what = chance.randrange(100)
    if client is None or (what < 5 and len(driver.clients) < 12):
        instance = chance.choice([None, None, 0, 1])
        driver.arrive(
            instance,
            protocols=chance.choice([0, 1, 1, 2, 2, 3]),
            version=chance.choice([3, 5, 8, 9]),
        )
    elif what < 45:
        driver.step(client)
    elif what < 65:
        _misstep(driver, client, chance)
    elif what < 85:
        _log_step(driver, chance)
    else:
        driver.pass_ms(chance.choice([1, 500, 1_000, 3_000, 6_000, 11_000, 31_000]))


def _misstep(driver: Driver, client: Client, chance: Random) -> None:
    """What a client does that has lost an answer, or its way."""
    what = chance.randrange(20)
    if what < 5:
        client.protocols = chance.choice(PROTOCOLS)
        driver.send_join(client)
    elif what < 9:
        driver.commit(client)
    elif what == 9:
        driver.leave(client)
    elif what == 10:
        driver.get_lazy(client)
    elif what < 15:
        if client.generation >= 0 and not client.is_lazy:
            driver.send_sync(client)
    else:
        driver.rogue(chance.randrange(4), *driver.any_member(chance))


def _log_step(driver: Driver, chance: Random) -> None:
    """What the coordinator's log does, and who administers it."""
    what = chance.randrange(20)
    if what < 14:
        driver.acknowledge()
    elif what < 17:
        driver.refuse()
    elif what < 19:
        driver.fail_over()
    else:
        driver.resize(chance.randrange(1, 7))
