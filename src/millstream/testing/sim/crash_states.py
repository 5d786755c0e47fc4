"""The crash-state explorer: every point of a recorded run at which the power could have failed.

A recording is folded step by step. After each step the pending changes could survive in very many
combinations; a bounded number of them is chosen, first systematically (nothing, everything, each
single change lost or torn, one file's changes lost, names without data, histories cut at each
change), then at random from the seed. The caller runs recovery on each, and knows from
`marks_before` what had been promised by then.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.crash_fates import by_table, keep_all, keep_none, random_fate, tears_of
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.durability import (
    DROP,
    KEEP,
    Change,
    Durability,
    Fate,
    FateChooser,
    Mark,
    Step,
    Truncate,
    Unlink,
    Write,
)
from millstream.testing.sim.storage import Recording, SimStorage
from millstream.testing.sim.trace import Trace

_CHANGES_SINGLED_OUT_MAX: Final = 24
"""Of very many pending changes only the newest are lost or kept singly; chance does the rest."""

_RANDOM_SHARE: Final = 0.25
"""Part of the limit that random states get even when the systematic ones would fill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashState:
    """One disk that a power loss could have left."""

    disk: SimDisk
    crash_point: int
    """How many recorded steps had been taken."""
    description: str
    marks_before: tuple[object, ...]
    """The caller's marks recorded before the crash, oldest first."""

    @property
    def synced_mark(self) -> object | None:
        """The last mark before the crash."""
        return self.marks_before[-1] if self.marks_before else None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to build at one crash point; `what` and `subject` identify it, `choose` decides."""

    crash_point: int
    rank: int
    what: str
    choose: FateChooser
    subject: int = 0
    random_seed: str = ""


def crash_states(
    recording: Recording, *, limit: int = 1000, seed: int | str = 0
) -> Iterator[CrashState]:
    """At most `limit` legal crash states of the recording, in order of their crash points."""
    randomness = SeededRandomness(seed)
    steps = list(recording.steps)
    systematic = _pick(_systematic_plans(recording.start, steps), limit, randomness)
    plans = [*systematic, *_random_plans(len(steps), limit - len(systematic), seed, randomness)]
    plans.sort(key=lambda plan: plan.crash_point)
    yield from _build(recording.start, steps, plans, randomness)


def _pick(plans: list[_Plan], limit: int, randomness: SeededRandomness) -> list[_Plan]:
    """All plans of the first ranks, and a random part of the rank that does not fit."""
    room = limit - int(limit * _RANDOM_SHARE)
    by_rank_and_chance = sorted(
        (plan.rank, randomness.integer(0, 1 << 62), number) for number, plan in enumerate(plans)
    )
    return [plans[number] for _, _, number in by_rank_and_chance[:room]]


def _random_plans(
    step_count: int, count: int, seed: int | str, randomness: SeededRandomness
) -> list[_Plan]:
    return [
        _Plan(
            randomness.integer(0, step_count + 1),
            rank=9,
            what="random",
            choose=keep_none,
            random_seed=f"{seed}/{number}",
        )
        for number in range(count)
    ]


class _Planner:
    """Collects plans, leaving out those that would give a state already planned."""

    def __init__(self) -> None:
        self.plans: list[_Plan] = []
        self._seen: set[object] = set()
        self._born: dict[int, tuple[int, int]] = {}

    def plan_at(self, crash_point: int, model: Durability, mark_count: int) -> None:
        pending = model.pending()
        point = (model.version, mark_count)
        newest = pending[-1].number if pending else 0
        for change in reversed(pending):
            if change.number in self._born:
                break
            self._born[change.number] = point
        self._add(_plans_keeping_little(crash_point, pending), point)
        self._add(_plans_keeping_most(crash_point, pending), (point, newest))
        # A history cut after a change was "everything kept" when that change was the newest,
        # unless something was synced or promised since.
        older = pending[-_CHANGES_SINGLED_OUT_MAX:-1]
        cuts = [change for change in older if self._born[change.number] != point]
        self._add((_history_until(crash_point, change) for change in cuts), point)

    def _add(self, plans: Iterable[_Plan], point: object) -> None:
        for plan in plans:
            key = (point, plan.what, plan.subject)
            if key not in self._seen:
                self._seen.add(key)
                self.plans.append(plan)


def _systematic_plans(start: Durability, steps: list[Step]) -> list[_Plan]:
    planner = _Planner()
    model = start.copy()
    mark_count = 0
    planner.plan_at(0, model, mark_count)
    for crash_point, step in enumerate(steps, start=1):
        model.fold(step)
        mark_count += isinstance(step, Mark)
        planner.plan_at(crash_point, model, mark_count)
    return planner.plans


def _plans_keeping_little(crash_point: int, pending: list[Change]) -> Iterator[_Plan]:
    """States that do not change when more is written after them."""
    yield _Plan(crash_point, 0, "nothing unsynced kept", keep_none)
    for change in pending[-_CHANGES_SINGLED_OUT_MAX:]:
        yield _Plan(
            crash_point,
            rank=2,
            what=f"only {_describe(change)} kept",
            choose=by_table({change.number: KEEP}, default=DROP),
            subject=change.number,
        )


def _plans_keeping_most(crash_point: int, pending: list[Change]) -> Iterator[_Plan]:
    if not pending:
        return
    yield _Plan(crash_point, 0, "everything kept", keep_all)
    newest = pending[-1]
    singled_out: list[tuple[Change, Fate, str]] = [
        (change, DROP, "lost") for change in pending[-_CHANGES_SINGLED_OUT_MAX:]
    ]
    if isinstance(newest, Write):
        singled_out += [(newest, tear, str(tear)) for tear in tears_of(newest)]
    for change, fate, text in singled_out:
        yield _Plan(
            crash_point,
            rank=1,
            what=f"{_describe(change)} {text}",
            choose=by_table({change.number: fate}, default=KEEP),
            subject=change.number,
        )
    groups = dict.fromkeys(map(_group_of, pending))
    for group in groups if len(groups) > 1 else ():
        yield _Plan(crash_point, 1, f"{group} lost", _by_group(group, inside=DROP, outside=KEEP))
        kept = _by_group(group, inside=KEEP, outside=DROP)
        yield _Plan(crash_point, 2, f"only {group} kept", kept)


def _group_of(change: Change) -> str:
    """What reaches the disk together: one file's content, or all names."""
    return f"content of {change.path}" if isinstance(change, Write | Truncate) else "names"


def _by_group(group: str, *, inside: Fate, outside: Fate) -> FateChooser:
    return lambda change: inside if _group_of(change) == group else outside


def _history_until(crash_point: int, last: Change) -> _Plan:
    return _Plan(
        crash_point,
        rank=3,
        what=f"history ends with {_describe(last)}",
        choose=lambda change: KEEP if change.number <= last.number else DROP,
        subject=last.number,
    )


def _build(
    start: Durability, steps: list[Step], plans: list[_Plan], randomness: SeededRandomness
) -> Iterator[CrashState]:
    model = start.copy()
    marks: list[object] = []
    done = 0
    seen_random: set[object] = set()
    for plan in plans:
        for step in steps[done : plan.crash_point]:
            model.fold(step)
            if isinstance(step, Mark):
                marks.append(step.value)
        done = max(done, plan.crash_point)
        choose, what = plan.choose, plan.what
        if plan.random_seed:
            fates, what = _draw_fates(model.pending(), SeededRandomness(plan.random_seed))
            key = (done, tuple(fates.items()))
            if key in seen_random:
                continue
            seen_random.add(key)
            choose = by_table(fates, default=DROP)
        tree = model.after_power_loss(choose)
        yield CrashState(
            disk=SimDisk(storage=SimStorage(tree, randomness.fork(what), Trace())),
            crash_point=plan.crash_point,
            description=f"after step {plan.crash_point} of {len(steps)}: {what}",
            marks_before=tuple(marks),
        )


def _draw_fates(pending: list[Change], randomness: SeededRandomness) -> tuple[dict[int, Fate], str]:
    """Random fates and their description, with the newest changes only."""
    fates = {change.number: random_fate(change, randomness) for change in pending}
    texts = [f"{_describe(change)} {fates[change.number]}" for change in pending]
    return fates, "random: " + ("; ".join(texts[-8:]) if texts else "nothing pending")


def _describe(change: Change) -> str:
    if isinstance(change, Write):
        return f"write {change.path}@{change.position}+{len(change.data)}"
    if isinstance(change, Truncate):
        return f"truncate {change.path} to {change.size}"
    if isinstance(change, Unlink):
        return f"remove {change.path}"
    return f"name {change.path}"
