"""Bugs that the simulation of a cluster must find: planted one by one, until a seed fails.

A plant replaces production code within this process, for one run. What it must be caught as is part
of it: a simulation that stumbles over something else on its way would not have found the bug.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import getattr_static
from typing import Any, Final, NamedTuple
from unittest import mock

from millstream.testing.simulation.cluster.simulation import run_cluster

SEEDS: Final = range(1, 61)
SEEDS_NEARBY: Final = 20
"""Tried from a bug's first seed on: some are caught by one of forty seeds."""
STEPS: Final = 200

Replace = Callable[[Any], Any]
"""From the original to its replacement."""


class Patch(NamedTuple):
    """A target, as `module:name.name`, and its replacement."""

    target: str
    replace: Replace


class Planted(NamedTuple):
    """A bug."""

    name: str
    patches: tuple[Patch, ...]
    symptoms: tuple[str, ...]
    """One of these is in the failing run's message."""
    first_seed: int = SEEDS.start
    """Where it is known to be caught; `make sim PROOF=1` names the seed.

    A change of the simulation moves it: then the bug's test is among the slowest of `make test`.
    """


class Caught(NamedTuple):
    """How a planted bug was found."""

    seed: int
    text: str


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """With the bug in place; raises AttributeError when its target no longer exists."""
    with ExitStack() as patches:
        for target, replace in bug.patches:
            module, _, path = target.partition(":")
            owner: Any = importlib.import_module(module)
            *holders, name = path.split(".")
            for holder in holders:
                owner = getattr(owner, holder)
            original = getattr_static(owner, name)
            patches.enter_context(mock.patch.object(owner, name, replace(original)))
        yield


Run = Callable[..., object]
"""One seed with `steps`."""


def first_catch(
    bug: Planted, *, seeds: range = SEEDS, steps: int = STEPS, run: Run = run_cluster
) -> Caught | None:
    """Run seeds until one catches the bug with its own symptom; None when none does."""
    later = range(bug.first_seed, max(seeds.stop, bug.first_seed + SEEDS_NEARBY))
    order = [*later, *range(seeds.start, min(seeds.stop, bug.first_seed))]
    with planted(bug):
        for seed in order:
            text = _failure(run, seed, steps)
            if text is not None:
                _collect_failed_run()
            if text is not None and any(part in text for part in bug.symptoms):
                return Caught(seed, text)
    return None


def _collect_failed_run() -> None:
    """A failed run leaves coroutines that cannot end in order: their loop is closed.

    Collect them now and silently: later the report would be blamed on other code.
    """
    former, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = former


def _failure(run: Run, seed: int, steps: int) -> str | None:
    try:
        run(seed, steps=steps)
    except KeyboardInterrupt:
        raise
    except BaseExceptionGroup as error:
        return " ".join(map(str, error.exceptions))
    except BaseException as error:  # noqa: BLE001 - violated invariants too
        return f"{type(error).__name__}: {error}"
    return None


# -- the bugs ----------------------------------------------------------------------------------

_LEADER: Final = "millstream.replication.leader:LeaderReplicas"
_FOLLOWER: Final = "millstream.replication.follower:Follower"


def _always_proved(_: Any) -> Any:
    return lambda *_: True


def _cut_to_high_watermark(original: Any) -> Any:
    """As Kafka did before KIP-101, whenever another leader is followed."""

    def prepare(follower: Any) -> Any:
        if follower.log.log_end > follower.log.high_watermark:
            follower._cut(follower.log.high_watermark)  # noqa: SLF001
        return original(follower)

    return prepare


def _no_check(_: Any) -> Any:
    return lambda *_, **__: None


def _always_enough(_: Any) -> Any:
    return property(lambda _: True)


def _count_older_epochs(original: Any) -> Any:
    """A new epoch begins with what was fetched in the one before."""

    def lead(replicas: Any, state: Any, epoch_start: Any, now_s: float) -> None:
        original(replicas, state, epoch_start, now_s)
        for broker, progress in replicas._followers.items():  # noqa: SLF001
            if broker in state.isr:
                progress.end = epoch_start

    return lead


def _any_alive_replica(original: Any) -> Any:
    """The first of the assigned replicas that is alive, in sync or not."""

    def first(electorate: Any, order: Any, among: Any) -> Any:
        del among
        return original(electorate, order, order)

    return first


def _without_fence(original: Any) -> Any:
    """Every write names the epoch's version as it is, not as it was when this one was elected."""

    async def write(writer: Any, groups: Any) -> Any:
        found = await writer._session.exists("/controller_epoch")  # noqa: SLF001
        fence = writer._fence  # noqa: SLF001
        writer._fence = type(fence)(path=fence.path, version=found.version)  # noqa: SLF001
        return await original(writer, groups)

    return write


def _nothing_is_missed(_: Any) -> Any:
    return lambda *_: {}


def _any_marker_proves(_: Any) -> Any:
    """As it was once: without regard to a directory that is missing."""

    def proved(_: Any, markers: Any) -> Any:
        epochs = [one.broker_epoch for one in markers if one is not None and one.broker_epoch]
        return max(epochs, default=-1)

    return proved


BUGS: Final = (
    Planted(
        "an uncleanly restarted replica stays eligible",
        (
            Patch(
                "millstream.controller.cluster.brokers:_BrokerComparison.is_proved", _always_proved
            ),
        ),
        ("I-14", "I-01", "I-13", "lost-write", "lost-read"),
    ),
    Planted(
        "followers truncate to their high watermark",
        (Patch(f"{_FOLLOWER}.prepare", _cut_to_high_watermark),),
        ("I-13", "I-01", "I-02", "lost", "inconsistent"),
    ),
    Planted(
        "a follower's epochs are not compared with the leader's",
        (
            Patch("millstream.broker.fetch.read:_divergence", _no_check),
            Patch("millstream.replication.partition:Partition.check_leader_epoch", _no_check),
        ),
        ("I-12", "I-13", "I-02", "I-01", "I-10", "lost", "inconsistent", "poll-skip"),
        first_seed=9,
    ),
    Planted(
        "acknowledged before enough are in sync",
        (Patch(f"{_LEADER}.is_enough", _always_enough),),
        ("I-09", "I-01", "I-13", "lost"),
        first_seed=6,
    ),
    Planted(
        "elected from outside of the ISR",
        (Patch("millstream.controller.cluster.elections:Electorate.first", _any_alive_replica),),
        ("I-14",),
    ),
    Planted(
        "a fetch of an older epoch advances the high watermark",
        (Patch(f"{_LEADER}._lead", _count_older_epochs),),
        ("I-13", "I-09", "I-01", "I-02", "lost", "inconsistent"),
        first_seed=75,
    ),
    Planted(
        "a deposed controller's write is accepted",
        (Patch("millstream.controller.cluster.fenced_writes:FencedWriter.write", _without_fence),),
        ("I-16",),
        first_seed=98,
    ),
    Planted(
        "partitions of a missing log directory are created again",
        (Patch("millstream.broker.cluster.member_directories:absent", _nothing_is_missed),),
        ("I-01", "I-13", "I-14", "lost", "could not open partitions"),
        first_seed=9,
    ),
    Planted(
        "a broker without one of its directories proves a clean stop",
        (Patch("millstream.storage.manager.log_manager:_proved_epoch", _any_marker_proves),),
        ("I-14", "I-01", "I-13", "lost"),
        first_seed=24,
    ),
)
