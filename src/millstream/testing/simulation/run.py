"""Many seeds of the simulations, on all cores.

    python -m millstream.testing.simulation.run --seeds 1000 --from 0 [--steps 200] [--part broker]
    python -m millstream.testing.simulation.run --proof

Parts are log, broker, cluster and groups; without one all of them run, one after the other. With
`--proof` bugs are planted in the code of the cluster and of the groups one by one, and each must be
caught.

A failing seed is reported with the command that replays it. A run that is long enough must have met
every operation: a simulation that never lost power proves nothing.
"""

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Final, NamedTuple

from millstream.testing.reporting import replay_lines
from millstream.testing.simulation.broker.simulation import INTERESTING, simulate_broker
from millstream.testing.simulation.cluster.coverage import missing_events as cluster_missing_events
from millstream.testing.simulation.cluster.simulation import simulate_cluster
from millstream.testing.simulation.groups.simulation import missing_events as groups_missing_events
from millstream.testing.simulation.groups.simulation import simulate_groups
from millstream.testing.simulation.log.simulation import ALWAYS, SOMETIMES, simulate_log

STEPS_DEFAULT: Final = 200
STEPS_TO_MEET_ALL: Final = 10_000
"""With so many steps in all, an operation that never happened is switched off by mistake."""
SEEDS_PER_JOB: Final = 5

LOG: Final = "log"
BROKER: Final = "broker"
CLUSTER: Final = "cluster"
GROUPS: Final = "groups"
PARTS: Final = (LOG, BROKER, CLUSTER, GROUPS)
ALL: Final = "all"
BROKER_SEEDS_TO_MEET_ALL: Final = 150
"""With so many seeds of the usual length every fault and every rare event happens."""

Progress = Callable[[int], None]
"""Called with the number of seeds just done."""


class SeedFailure(NamedTuple):
    """A seed after which log and model differ, or in which a broker violated an invariant."""

    seed: int
    text: str


class SimulationRun(NamedTuple):
    """How some seeds went."""

    seeds: int
    counts: Counter[str]
    failure: SeedFailure | None
    part: str = LOG
    steps: int = STEPS_DEFAULT

    @property
    def missing_events(self) -> list[str]:
        """What should have happened in a run of this length and did not."""
        if self.part == CLUSTER:
            return (
                cluster_missing_events(self.counts, self.seeds)
                if self.steps >= STEPS_DEFAULT
                else []
            )
        if self.part == GROUPS:
            return (
                groups_missing_events(self.counts, self.seeds)
                if self.steps >= STEPS_DEFAULT
                else []
            )
        if self.part == BROKER:
            is_long = self.seeds * self.steps >= BROKER_SEEDS_TO_MEET_ALL * STEPS_DEFAULT
            return sorted(INTERESTING - set(self.counts)) if is_long else []
        if self.counts.total() < STEPS_TO_MEET_ALL:
            return []
        return sorted({*ALWAYS, *SOMETIMES} - set(self.counts))


def run_seeds(
    first: int, seeds: int, *, steps: int, progress: Progress, part: str = LOG
) -> SimulationRun:
    """Seeds [first, first + seeds) of one part; stops at the first that fails."""
    jobs = [
        range(start, min(start + SEEDS_PER_JOB, first + seeds))
        for start in range(first, first + seeds, SEEDS_PER_JOB)
    ]
    if len(jobs) == 1:  # also the replay of a seed: no other process between it and a debugger
        counts, failure = _run_job(jobs[0], steps, part)
        progress(seeds)
        return SimulationRun(seeds, counts, failure, part, steps)
    return _run_parallel(jobs, steps, part, progress)


def _run_parallel(jobs: list[range], steps: int, part: str, progress: Progress) -> SimulationRun:
    total: Counter[str] = Counter()
    done = 0
    with _workers() as pool:
        futures: dict[Future[tuple[Counter[str], SeedFailure | None]], range] = {
            pool.submit(_run_job, job, steps, part): job for job in jobs
        }
        for future in as_completed(futures):
            counts, failure = future.result()
            total += counts
            done += len(futures[future])
            progress(len(futures[future]))
            if failure is not None:
                return SimulationRun(done, total, failure, part, steps)
    return SimulationRun(done, total, None, part, steps)


@contextmanager
def _workers() -> Iterator[ProcessPoolExecutor]:
    # Not forked: this process may have threads (the progress bar), and a fork copies their locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=context)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _run_job(seeds: range, steps: int, part: str) -> tuple[Counter[str], SeedFailure | None]:
    counts: Counter[str] = Counter()
    simulate = {
        LOG: simulate_log,
        BROKER: simulate_broker,
        CLUSTER: simulate_cluster,
        GROUPS: simulate_groups,
    }[part]
    for seed in seeds:
        try:
            counts += simulate(seed, steps=steps)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - violated invariants too
            command = f"make sim SEEDS=1 FROM={seed}"
            command += f" STEPS={steps}" if steps != STEPS_DEFAULT else ""
            command += f" PART={part}"
            return counts, SeedFailure(seed, replay_lines(error, seed=seed, command=command))
    return counts, None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 when a seed failed or an operation never happened."""
    parser = argparse.ArgumentParser(prog="python -m millstream.testing.simulation.run")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--steps", type=int, default=STEPS_DEFAULT)
    parser.add_argument("--part", choices=[ALL, *PARTS], default=ALL)
    parser.add_argument("--proof", action="store_true", help="plant bugs, each must be caught")
    options = parser.parse_args(arguments)
    if options.proof:
        return prove(options.part)
    if options.seeds < 1 or options.steps < 1:
        parser.error("--seeds and --steps must be at least 1")
    for part in PARTS if options.part == ALL else (options.part,):
        with _progress_bar(options.seeds, part) as progress:
            run = run_seeds(
                options.first, options.seeds, steps=options.steps, progress=progress, part=part
            )
        if report(run):
            return 1
    return 0


def prove(part: str = ALL) -> int:
    """Plant every bug of a part; 1 when one of them is not caught as what it is."""
    from millstream.testing.simulation.cluster.planted_bugs import BUGS, Planted, Run, first_catch
    from millstream.testing.simulation.cluster.simulation import run_cluster
    from millstream.testing.simulation.groups.planted_bugs import GROUP_BUGS
    from millstream.testing.simulation.groups.simulation import run_groups

    plants: list[tuple[Planted, Run]] = []
    plants += [(bug, run_cluster) for bug in BUGS if part in (ALL, CLUSTER)]
    plants += [(bug, run_groups) for bug in GROUP_BUGS if part in (ALL, GROUPS)]
    missed = 0
    for bug, run in plants:
        caught = first_catch(bug, run=run)
        missed += caught is None
        how = f"seed {caught.seed}: {caught.text[:200]}" if caught is not None else "by no seed"
        sys.stdout.write(f"{'caught' if caught else 'MISSED'}  {bug.name}\n        {how}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def report(run: SimulationRun) -> int:
    """Print the outcome; returns the exit code."""
    for name, count in sorted(run.counts.items()):
        sys.stdout.write(f"{count:>10,}  {name}\n")
    if run.failure is not None:
        sys.stdout.write(f"{run.failure.text}\n")
        return 1
    if run.missing_events:
        sys.stdout.write(f"never happened: {', '.join(run.missing_events)}\n")
        return 1
    sys.stdout.write(
        f"{run.part}: {run.seeds} seeds, {run.counts.total():,} operations, all as they should be\n"
    )
    return 0


@contextmanager
def _progress_bar(seeds: int, part: str) -> Iterator[Progress]:
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(*Bar.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(f"simulating: {part}", total=seeds)
        yield lambda done: bar.advance(task, done)


if __name__ == "__main__":
    sys.exit(main())
