"""`python -m millstream.testing.fuzz`: damaged requests for all request parsers, by seed.

    python -m millstream.testing.fuzz --minutes 60 [--from 0]
    python -m millstream.testing.fuzz --from 1234 --seeds 1

A seed is one form of one request, or one connection, with all its inputs; seeds go up from
`--from`, and the last line says where to go on. Every input decodes or is refused with the error
that its parser declares, the same by compiled and plain twins, within a time, and now and then it
is measured that it takes no more memory than its size allows.
"""

import argparse
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from typing import Final

from millstream.model.invariant import InvariantViolated
from millstream.testing.fuzz.generate import Form
from millstream.testing.fuzz.targets import FuzzFailed, Input, inputs_of
from millstream.testing.reporting import replay_lines

INPUT_MAX_S: Final = 1.0
"""CPU time for one input of at most a few hundred kilobytes, mostly of some hundred bytes."""
MEMORY_FIXED: Final = 4 << 20
MEMORY_PER_BYTE: Final = 200
"""What an input may take at the most; a count that was believed would take gigabytes."""
MEASURED_EVERY: Final = 50
"""Seeds; measuring memory makes everything some times slower."""
REPORT_INTERVAL_S: Final = 60.0
SEEDS_FOREVER: Final = 2**62
FORMS: Final = "versions of requests"


def run_seed(seed: int, counts: Counter[str], forms: set[Form]) -> None:
    """All inputs of a seed; raises FuzzFailed, or what should not have been raised."""
    is_measured = seed % MEASURED_EVERY == 0
    for one in inputs_of(seed):
        began_s = time.thread_time()
        outcome = _measured(one) if is_measured else one.check(one.data)
        took_s = time.thread_time() - began_s
        if took_s > INPUT_MAX_S and not is_measured:
            raise FuzzFailed(f"{one.name}: {took_s:.1f} s for {len(one.data)} bytes")
        counts[f"{one.name}: {outcome}"] += 1
        counts["inputs"] += 1
        if one.form is not None:
            forms.add(one.form)


def _measured(one: Input) -> str:
    one.check(one.data)  # what is loaded and compiled for the first time does not count
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        outcome = one.check(one.data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak - before > MEMORY_FIXED + MEMORY_PER_BYTE * len(one.data):
        raise FuzzFailed(f"{one.name}: {peak - before} bytes of memory for {len(one.data)}")
    return outcome


def run_seeds(first: int, seeds: int, end_s: float, counts: Counter[str]) -> tuple[int, str]:
    """The seed to go on with, and the report of the first failure."""
    reported_s = time.monotonic()
    forms: set[Form] = set()
    for seed in range(first, first + seeds):
        if time.monotonic() > end_s:
            return seed, ""
        try:
            run_seed(seed, counts, forms)
            counts[FORMS] = len(forms)
        except (Exception, InvariantViolated) as error:  # noqa: BLE001 - reported, and the run ends
            command = f"python -m millstream.testing.fuzz --from {seed} --seeds 1"
            return seed, replay_lines(error, seed=seed, command=command)
        if time.monotonic() - reported_s > REPORT_INTERVAL_S:
            reported_s = time.monotonic()
            _print_line(f"  seed {seed:,}, {counts['inputs']:,} inputs")
    return first + seeds, ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when an input did what it should not."""
    parser = argparse.ArgumentParser(prog="python -m millstream.testing.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=None)
    options = parser.parse_args(arguments)
    if options.minutes is None and options.seeds is None:
        parser.error("one of --minutes and --seeds is needed")
    end_s = time.monotonic() + (options.minutes * 60 if options.minutes else float("inf"))
    counts: Counter[str] = Counter()
    seeds = options.seeds if options.seeds is not None else SEEDS_FOREVER
    following, failure = run_seeds(options.first, seeds, end_s, counts)
    for name, count in sorted(counts.items()):
        _print_line(f"{count:>12,}  {name}")
    if failure:
        _print_line(failure)
        return 1
    _print_line(f"fuzz: seeds {options.first} to {following - 1} passed; go on --from {following}")
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
