"""The simulation of classic groups catches the bugs it is for: each is planted, and found."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.groups.classic_driver import Broken, random_run
from millstream.groups.classic import commits, static
from millstream.groups.classic import leave_group as leaving
from millstream.groups.classic import rebalance as rebalancing
from millstream.groups.classic import sync_group as syncing
from millstream.groups.classic.commits import Committer, check_commit
from millstream.groups.classic.core import Core
from millstream.groups.classic.members import Member, Roster
from millstream.groups.classic.states import Event
from millstream.groups.deadlines import Deadlines
from millstream.model.invariant import InvariantViolated

SEEDS = 400
STEPS = 120

Plant = Callable[[pytest.MonkeyPatch], None]


def old_generations_may_commit(patch: pytest.MonkeyPatch) -> None:
    def lenient(core: Core, committer: Committer, now_ms: int) -> None:
        if 0 <= committer.generation_id < core.generation_id:
            committer = committer._replace(generation_id=core.generation_id)
        check_commit(core, committer, now_ms)

    patch.setattr(commits, "check_commit", lenient)


def static_fencing_is_skipped(patch: pytest.MonkeyPatch) -> None:
    check = Core.check_member

    def lenient(core: Core, member_id: Any, instance_id: Any) -> Member:
        known_id = core.roster.instances.get(instance_id)
        return check(core, known_id or member_id, instance_id)

    patch.setattr(Core, "check_member", lenient)


def sync_is_answered_before_the_write_counts(patch: pytest.MonkeyPatch) -> None:
    assign = syncing._assign

    def hasty(core: Core, request: Any) -> None:
        assign(core, request)
        ticket = core.assignment_ticket
        if ticket is not None:
            syncing.on_written(core, ticket, core.writes[ticket], 0)  # type: ignore[arg-type]

    patch.setattr(syncing, "_assign", hasty)


def members_are_kept_past_their_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leaving, "expire_session", lambda *_: None)


def heartbeats_do_not_count(patch: pytest.MonkeyPatch) -> None:
    set_deadline = Deadlines.set

    def once(deadlines: Deadlines[Any], member_id: Any, at_ms: int) -> None:
        if deadlines.of(member_id) is None:
            set_deadline(deadlines, member_id, at_ms)

    patch.setattr(Deadlines, "set", once)


def a_leader_may_assign_twice(patch: pytest.MonkeyPatch) -> None:
    sync = syncing.sync

    def forgetful(core: Core, caller: Any, request: Any, now_ms: int) -> None:
        before = core.assignment_ticket
        if request.member_id == core.roster.leader_id:
            core.assignment_ticket = None
        try:
            sync(core, caller, request, now_ms)
        finally:
            core.assignment_ticket = before or core.assignment_ticket

    patch.setattr(syncing, "sync", forgetful)


def outcomes_of_given_up_generations_count(patch: pytest.MonkeyPatch) -> None:
    written = syncing.on_written

    def careless(core: Core, ticket: Any, what: Any, now_ms: int) -> None:
        core.assignment_ticket = ticket
        written(core, ticket, what, now_ms)

    patch.setattr(syncing, "on_written", careless)


def a_restarted_member_is_told_its_id_before_the_write(patch: pytest.MonkeyPatch) -> None:
    write = Core.write_with_ticket

    def hasty(core: Core, entry: Any, what: Any) -> Any:
        ticket = write(core, entry, what)
        if hasattr(what, "after"):
            static.on_written(core, what, 0)
        return ticket

    patch.setattr(Core, "write_with_ticket", hasty)


def the_old_member_stays_beside_the_restarted_one(patch: pytest.MonkeyPatch) -> None:
    def lenient(roster: Roster, member: Member, successor: Member) -> None:
        roster.instances.pop(member.instance_id, None)  # type: ignore[arg-type]
        roster.add(successor)

    patch.setattr(Roster, "replace", lenient)


def a_rebalance_has_no_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebalancing, "expire_join", _never_over)


def _never_over(core: Core, now_ms: int) -> None:
    core.join_deadline_ms = now_ms + 1_000_000_000


def late_syncs_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    def unnoticed(core: Core, _: int) -> None:
        core.sync_deadline_ms = None

    patch.setattr(leaving, "expire_pending_sync", unnoticed)


def who_waits_when_it_is_removed_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    def silent(core: Core, member: Member, *_: Any, **__: Any) -> None:
        core.roster.take_join(member)
        member.sync_caller = None

    patch.setattr(Core, "refuse_pending", silent)


def a_superseded_join_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    await_join = Roster.await_join

    def silent(roster: Roster, member: Member, caller: Any) -> None:
        await_join(roster, member, caller)

    patch.setattr(Roster, "await_join", silent)


def assignments_outlive_their_generation(patch: pytest.MonkeyPatch) -> None:
    """A refused assignment is thought of as given: who asks in the next round gets the old one."""
    answer = rebalancing.sync_response

    def lenient(core: Core, member: Member) -> Any:
        member.assigned_in = core.generation_id
        return answer(core, member)

    def partial(core: Core, ticket: Any, what: Any, now_ms: int) -> None:
        if core.assignment_ticket == ticket:
            core.move(Event.ASSIGNMENT_WRITTEN)
            rebalancing.send_assignments(core, now_ms)
        del what

    patch.setattr(rebalancing, "sync_response", lenient)
    patch.setattr(syncing, "on_written", partial)


PLANTS: list[tuple[Plant, str]] = [
    (old_generations_may_commit, "I-28"),
    (static_fencing_is_skipped, "I-28"),
    (sync_is_answered_before_the_write_counts, "I-27"),
    (members_are_kept_past_their_session, "I-30"),
    (heartbeats_do_not_count, "I-30"),
    (a_leader_may_assign_twice, "I-27"),
    (outcomes_of_given_up_generations_count, "I-27|I-31"),
    (a_restarted_member_is_told_its_id_before_the_write, "I-28"),
    (the_old_member_stays_beside_the_restarted_one, "I-2[78]|I-3"),
    (a_rebalance_has_no_end, "I-31"),
    (late_syncs_are_not_noticed, "I-31"),
    (who_waits_when_it_is_removed_hears_nothing, "I-3[16]"),
    (a_superseded_join_hears_nothing, "I-36"),
    (assignments_outlive_their_generation, "I-27"),
]


@pytest.mark.parametrize(("plant", "promise"), PLANTS, ids=lambda one: getattr(one, "__name__", ""))
def test_planted_bug_is_found(plant: Plant, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((Broken, InvariantViolated), match=promise):
        run_seeds(SEEDS)


def test_without_a_planted_bug_nothing_is_found() -> None:
    run_seeds(SEEDS)


def run_seeds(count: int) -> None:
    for seed in range(count):
        random_run(seed, STEPS)
