"""Hours of random tests, simulation and chaos in turn, until the time is up.

    python -m millstream.testing.soak --hours 8 [--seed 7] [--part log|broker]

A turn has both of the log and both of the broker.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from millstream.runtime.randomness import system_randomness
from millstream.testing.chaos.run import run_chaos
from millstream.testing.simulation.run import ALL, BROKER, LOG, STEPS_DEFAULT, run_seeds

SEEDS_PER_TURN: Final = {LOG: 200, BROKER: 150}
ROUNDS_PER_TURN: Final = {LOG: 50, BROKER: 20}
"""Each about half a minute on two cores."""
PARTS: Final = (LOG, BROKER)
LONG_TURN_EVERY: Final = 4
"""Every so many turns the histories are longer and fewer: some states need many steps."""
LONG_FACTOR: Final = 5

Report = Callable[[str], None]


class Soak:
    """Turn after turn with seeds that were not used before."""

    def __init__(self, seed: int, report: Report, parts: Sequence[str] = PARTS) -> None:
        self._next_seed = seed
        self._report = report
        self._parts = parts
        self._turn = 0
        self.totals: Counter[str] = Counter()

    def run_turn(self) -> bool:
        """One turn of each; False when something failed, which was reported."""
        self._turn += 1
        return all(self._simulate(part) and self._kill(part) for part in self._parts)

    def _simulate(self, part: str) -> bool:
        factor = LONG_FACTOR if self._turn % LONG_TURN_EVERY == 0 else 1
        # Longer histories cost more than in proportion: the model compares all of it each step.
        seeds, steps = SEEDS_PER_TURN[part] // factor**2, STEPS_DEFAULT * factor
        run = run_seeds(self._next_seed, seeds, steps=steps, progress=lambda _: None, part=part)
        self._next_seed += seeds
        self.totals.update({f"{part} seeds": run.seeds, f"{part} operations": run.counts.total()})
        if run.failure is not None:
            self._report(run.failure.text)
        elif run.missing_events:
            self._report(f"never happened: {', '.join(run.missing_events)}")
        return run.failure is None and not run.missing_events

    def _kill(self, part: str) -> bool:
        run = run_chaos(ROUNDS_PER_TURN[part], self._next_seed, lambda _: None, part=part)
        self._next_seed += 1
        written = run.counts["records written"] + run.counts["records acknowledged"]
        self.totals.update({f"rounds of {part} chaos": run.rounds, "records written": written})
        if run.failure is not None:
            self._report(run.failure)
        return run.failure is None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 at the first failure."""
    parser = argparse.ArgumentParser(prog="python -m millstream.testing.soak")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--part", choices=[ALL, *PARTS], default=ALL)
    options = parser.parse_args(arguments)
    if not options.hours > 0:  # not-a-number is above nothing either
        parser.error("--hours must be above 0")
    seed = options.seed if options.seed is not None else system_randomness().integer(0, 2**31)
    started_s = time.monotonic()
    soak = Soak(seed, _print_line, PARTS if options.part == ALL else [options.part])
    _print_line(f"soaking for {options.hours:g} h from seed {seed}")
    while True:
        is_good = soak.run_turn()
        elapsed_s = time.monotonic() - started_s
        text = ", ".join(f"{count:,} {name}" for name, count in soak.totals.items())
        _print_line(f"{elapsed_s / 60:6.1f} min: {text}")
        if not is_good or elapsed_s >= options.hours * 3600:
            break
    _print_line("everything held" if is_good else "FAILED, see above")
    return 0 if is_good else 1


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
