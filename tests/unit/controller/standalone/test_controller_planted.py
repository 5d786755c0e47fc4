"""Bugs planted into the controller: the simulation of controllers finds each of them.

Without this nobody would know whether its checks can fail at all.
"""

from collections.abc import Callable
from typing import Any, cast

import pytest

from kits.controller.controllers_simulation import simulate
from millstream.controller.cluster.decisions import Decide, Decisions
from millstream.controller.cluster.fenced_writes import FencedWriter
from millstream.controller.cluster.plans import Plan
from millstream.coordination.port import Check, Session
from millstream.model.invariant import InvariantViolated
from millstream.runtime.scheduler import StepGenerator, run_blocking

SEEDS = range(1, 41)

Plant = Callable[[pytest.MonkeyPatch], None]


def without_the_epoch_check(patch: pytest.MonkeyPatch) -> None:
    """The fence is one that nobody ever takes down: an old controller's writes are accepted."""
    whole = FencedWriter.__init__

    def planted(self: FencedWriter, session: Session, *, epoch_version: int) -> None:
        whole(self, session, epoch_version=epoch_version)
        self._fence = Check(path="/brokers/topics", version=0)

    patch.setattr(FencedWriter, "__init__", planted)


def image_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """Brokers hear of what may never be written."""

    async def planted(self: Decisions, decide: Decide[Any]) -> Any:
        before = self.image
        decided = decide(before)
        is_whole = isinstance(decided, Plan)
        plan = (
            cast("Plan[Any]", decided)
            if is_whole
            else run_blocking(cast("StepGenerator[Any]", decided))
        )
        if plan.image is not before:
            self._move(before, plan)
        await self._writer.write(plan.groups)
        return plan.result

    patch.setattr(Decisions, "_carry_out", planted)


PLANTED = [without_the_epoch_check, image_before_the_write]


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda one: one.__name__)
def test_it_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        try:
            simulate(seed)
        except (AssertionError, InvariantViolated):
            return
    pytest.fail(f"no seed of {SEEDS} finds {plant.__name__}")
