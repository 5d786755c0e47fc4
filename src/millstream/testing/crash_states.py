"""The crash-state explorer: every moment of a recorded run at which the power could have gone.

A recording is folded step by step. After each step the pending changes could survive in very many
combinations; a bounded number of them is chosen, first systematically (nothing, everything, each
change lost or torn alone, one file's changes lost, names without data, histories cut at each
change), then at random from the seed. Recovery is run on each by the caller, who knows from
`marks_before` what had been promised by then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.crash_fates import by_table, random_fate, tears_of
from millstream.testing.durability import (
    DROP,
    KEEP,
    Change,
    Durability,
    Fate,
    Mark,
    Step,
    Truncate,
    Unlink,
    Write,
)
from millstream.testing.sim_disk import SimDisk
from millstream.testing.sim_storage import Recording, SimStorage
from millstream.testing.trace import Trace

_CHANGES_SINGLED_OUT_MAX: Final = 24
"""Of very many pending changes only the newest are lost or kept alone; chance does the rest."""

_RANDOM_SHARE: Final = 0.25
"""Part of the limit that random states get even when the systematic ones alone would fill it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashState:
    """One disk that a power loss could have left."""

    disk: SimDisk
    crash_point: int
    """How many recorded steps had been made."""
    description: str
    marks_before: tuple[object, ...]
    """The caller's marks recorded before the crash, oldest first."""

    @property
    def synced_mark(self) -> object | None:
        """The last mark before the crash."""
        return self.marks_before[-1] if self.marks_before else None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to build at one crash point: `default` for all pending changes but the exceptions."""

    crash_point: int
    rank: int
    what: str
    default: Fate
    exceptions: tuple[tuple[int, Fate], ...] = ()
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
    """The first ranks whole, and of the rank that does not fit a random part."""
    room = limit - int(limit * _RANDOM_SHARE)
    by_rank_and_chance = sorted(
        (plan.rank, randomness.integer(0, 1 << 62), number) for number, plan in enumerate(plans)
    )
    return [plans[number] for _, _, number in by_rank_and_chance[:room]]


def _random_plans(
    step_count: int, count: int, seed: int | str, randomness: SeededRandomness
) -> list[_Plan]:
    return [
        _Plan(randomness.integer(0, step_count + 1), 9, "random", DROP, (), f"{seed}/{number}")
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
        moment = (model.version, mark_count)
        for change in pending:
            self._born.setdefault(change.number, moment)
        newest = pending[-1].number if pending else 0
        for plan in _plans_for(crash_point, pending):
            key = (moment, plan.default, plan.exceptions, plan.default is DROP or newest)
            if key not in self._seen:
                self._seen.add(key)
                self.plans.append(plan)
        for count in range(1, len(pending)):
            # Cutting the history here was "all kept" when this change was the newest, unless
            # something was synced or promised since.
            if self._born[pending[count - 1].number] != moment:
                self._add_history(crash_point, pending[:count], moment)

    def _add_history(self, crash_point: int, kept: list[Change], moment: tuple[int, int]) -> None:
        key = (moment, kept[-1].number, len(kept))
        if key not in self._seen:
            self._seen.add(key)
            exceptions = tuple((change.number, KEEP) for change in kept)
            what = f"history ends with {_told(kept[-1])}"
            self.plans.append(_Plan(crash_point, 3, what, DROP, exceptions))


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


def _plans_for(crash_point: int, pending: list[Change]) -> Iterator[_Plan]:
    yield _Plan(crash_point, 0, "nothing unsynced kept", DROP)
    if not pending:
        return
    yield _Plan(crash_point, 0, "everything kept", KEEP)
    newest = pending[-1]
    if isinstance(newest, Write):
        for tear in tears_of(newest):
            yield _Plan(crash_point, 1, f"{_told(newest)} {tear}", KEEP, ((newest.number, tear),))
    for change in pending[-_CHANGES_SINGLED_OUT_MAX:]:
        yield _Plan(crash_point, 1, f"{_told(change)} lost", KEEP, ((change.number, DROP),))
        yield _Plan(crash_point, 2, f"only {_told(change)} kept", DROP, ((change.number, KEEP),))
    yield from _plans_by_group(crash_point, pending)


def _plans_by_group(crash_point: int, pending: list[Change]) -> Iterator[_Plan]:
    """Whole groups that reach the disk together: one file's content, or all names."""
    groups: dict[str, list[Change]] = {}
    for change in pending:
        group = f"content of {change.path}" if isinstance(change, Write | Truncate) else "names"
        groups.setdefault(group, []).append(change)
    if len(groups) < 2:
        return
    for group, changes in groups.items():
        lost = tuple((change.number, DROP) for change in changes)
        yield _Plan(crash_point, 1, f"{group} lost", KEEP, lost)
        kept = tuple((change.number, KEEP) for change in changes)
        yield _Plan(crash_point, 2, f"only {group} kept", DROP, kept)


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
        fates, what = dict(plan.exceptions), plan.what
        if plan.random_seed:
            fates, what = _drawn(model.pending(), SeededRandomness(plan.random_seed))
            key = (done, tuple(fates.items()))
            if key in seen_random:
                continue
            seen_random.add(key)
        tree = model.after_power_loss(by_table(fates, default=plan.default))
        yield CrashState(
            disk=SimDisk(storage=SimStorage(tree, randomness.fork(what), Trace())),
            crash_point=plan.crash_point,
            description=f"after step {plan.crash_point} of {len(steps)}: {what}",
            marks_before=tuple(marks),
        )


def _drawn(pending: list[Change], randomness: SeededRandomness) -> tuple[dict[int, Fate], str]:
    """Random fates and their description, with the newest changes only."""
    fates = {change.number: random_fate(change, randomness) for change in pending}
    told = [f"{_told(change)} {fates[change.number]}" for change in pending]
    return fates, "random: " + ("; ".join(told[-8:]) if told else "nothing pending")


def _told(change: Change) -> str:
    if isinstance(change, Write):
        return f"write {change.path}@{change.position}+{len(change.data)}"
    if isinstance(change, Truncate):
        return f"truncate {change.path} to {change.size}"
    if isinstance(change, Unlink):
        return f"remove {change.path}"
    return f"name {change.path}"
