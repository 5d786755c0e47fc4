"""Chaos runs: real processes on real disks are killed while they write, and files are damaged.

    python -m millstream.testing.chaos.run --rounds 20 [--seed 7] [--part log]

Parts are log, broker, spark, cluster, groups and hostile; without one all of them run, one after
the other. `chaos/broker/rounds.py` has the broker's, `chaos/spark/rounds.py` that of Spark's
queries, `chaos/cluster/rounds.py` that of three brokers, `chaos/groups/rounds.py` that of consumer
groups on them, and `chaos/hostile/rounds.py` that of hostile clients.

Every round of the log: a writer goes on with the log of the round before and is killed with
SIGKILL at a random moment, its files may be damaged, then the log is opened and everything in it
compared with what must be there. SIGKILL loses nothing of what was written, so the end of the log
is known exactly; what a power loss may take is the simulator's job (`make sim`).
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from shutil import rmtree
from typing import Final, NamedTuple, Protocol

from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness, system_randomness
from millstream.testing.chaos.broker.rounds import BrokerChaos
from millstream.testing.chaos.log.damage import Damage, LogFiles, damage, scan_log_files
from millstream.testing.chaos.log.reader import ChaosFailed, Expected, check_log
from millstream.testing.chaos.log.writer import PARTITION
from millstream.testing.chaos.spark.steps import matrix
from millstream.testing.reporting import replay_lines
from millstream.testing.simulation.run import ALL, BROKER, LOG

ROUNDS_PER_LOG_MAX: Final = 1_000
"""Lives are also producer epochs, which are 16-bit numbers: then a new log begins."""
ROUNDS_DEFAULT: Final = 10
SPARK: Final = "spark"
CLUSTER: Final = "cluster"
GROUPS: Final = "groups"
HOSTILE: Final = "hostile"
CHAOS_PARTS: Final = (LOG, BROKER, SPARK, CLUSTER, GROUPS, HOSTILE)
SILENCE_MAX_S: Final = 60
"""A writer that prints nothing for this long hangs."""


class Writer:
    """The writing process, and what it reported before it died."""

    def __init__(self, directory: str, *, seed: int, life: int) -> None:
        command = [sys.executable, "-m", "millstream.testing.chaos.log.writer"]
        command += [directory, str(seed), str(life)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603
        self._unread = b""
        self.opened_end: int | None = None
        self.acknowledged_end = 0
        self.acks = 0

    def wait_for_acks(self, acks: int) -> None:
        """Wait until the log is open and `acks` flushes were reported, or the process is gone."""
        while self.opened_end is None or self.acks < acks:
            if not self._read():
                return

    def kill(self) -> None:
        """Kill it at once; every line that it wrote before is still valid."""
        self._process.send_signal(signal.SIGKILL)
        while self._read():
            pass
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if code != -signal.SIGKILL:
            raise ChaosFailed(f"the writer ended by itself with exit code {code}")

    def _read(self) -> bool:
        pipe = self._process.stdout
        if pipe is None or not select.select([pipe], [], [], SILENCE_MAX_S)[0]:
            self._process.kill()
            raise ChaosFailed(f"the writer printed nothing for {SILENCE_MAX_S} s")
        data = os.read(pipe.fileno(), 65536)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle_line(line.decode().split())
        return bool(data)

    def _handle_line(self, words: list[str]) -> None:
        match words:
            case ["open", _, end]:
                self.opened_end = int(end)
            case ["ack", end]:
                self.acknowledged_end = max(self.acknowledged_end, int(end))
                self.acks += 1


class Chaos:
    """Rounds on one log, which grows from one to the next."""

    def __init__(self, directory: str, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = SeededRandomness(f"chaos {seed}")
        self._disk = OsDisk()
        self._expected = Expected(seed)
        self._life = 0
        self.counts: Counter[str] = Counter()

    def run_round(self) -> str:
        """Kill, damage, check; return what happened. Raises ChaosFailed."""
        self._life += 1
        writer = self._run_writer()
        summary = f"life {self._life}: {writer.acks} acks"
        if writer.opened_end is None:
            self.counts["killed during its start"] += 1
        else:
            done = self._damage_files(writer, self._inspect_files(writer, writer.opened_end))
            self.counts[f"damage: {done.value}"] += 1
            summary += f", damage: {done.value}"
        summary += f", log [{self._expected.log_start}, {self._expected.log_end})"
        if self._chance.chance(0.25):
            self.counts["recovered by the next writer"] += 1
            return f"{summary}, left to the next writer"
        self.check()
        return summary

    def close(self) -> None:
        """Nothing runs between two rounds."""

    def check(self) -> None:
        """Open the log here, compare everything. Raises ChaosFailed."""
        if self._expected.lives:
            check_log(self._directory, self._expected, self._chance)
            self.counts["recovered and checked"] += 1

    def _run_writer(self) -> Writer:
        """Start it, let it get to a random point, kill it."""
        acks = self._chance.choice([0, 1, self._chance.integer(2, 40)])
        start_s, more_s = self._chance.between(0, 0.4), self._chance.between(0, 0.02)
        is_early = self._chance.chance(0.15)
        writer = Writer(self._directory, seed=self._seed, life=self._life)
        if not is_early:
            writer.wait_for_acks(acks)
        time.sleep(start_s if is_early else more_s)
        writer.kill()
        self.counts["acknowledgements"] += writer.acks
        return writer

    def _inspect_files(self, writer: Writer, opened_end: int) -> LogFiles:
        """What the killed writer left, before anything repairs or damages it."""
        expected = self._expected
        if opened_end != expected.log_end:
            raise ChaosFailed(f"I-11 writer found the end {opened_end}, not {expected.log_end}")
        expected.begin_life(self._life, opened_end)
        files = scan_log_files(self._disk, f"{self._directory}/{PARTITION}")
        if files.log_end < max(writer.acknowledged_end, opened_end):
            raise ChaosFailed(
                f"I-11 files end at {files.log_end}, acknowledged {writer.acknowledged_end}"
            )
        expected.log_end = files.log_end
        expected.segment_bytes = files.sizes
        expected.move_start(max(expected.log_start, min(files.sizes)))
        self.counts["records written"] += files.log_end - opened_end
        return files

    def _damage_files(self, writer: Writer, files: LogFiles) -> Damage:
        unflushed_from = max(writer.acknowledged_end, writer.opened_end or 0)
        done, end = damage(self._disk, files, self._chance, unflushed_from=unflushed_from)
        self.counts["records damaged away"] += self._expected.log_end - end
        self._expected.log_end = end
        return done


class Rounds(Protocol):
    """The interface of every part."""

    @property
    def counts(self) -> Counter[str]: ...

    def run_round(self) -> str: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


def create_rounds(
    directory: str, seed: int, *, part: str, cells: str = "", is_ensemble: bool = False
) -> Rounds:
    """Create the rounds of a part on an empty directory; `cells` chooses kills by name for Spark,
    the cluster and the groups, and attacks for hostile clients.

    With an ensemble, the cluster's coordination service is three real ZooKeeper servers.
    """
    if part == HOSTILE:
        from millstream.testing.chaos.hostile.rounds import HostileChaos

        return HostileChaos(directory, seed, only=cells)
    if part == GROUPS:
        from millstream.testing.chaos.groups.rounds import GroupChaos

        return GroupChaos(directory, seed, is_ensemble=is_ensemble, only=cells)
    if part == CLUSTER:
        from millstream.testing.chaos.cluster.rounds import ClusterChaos

        return ClusterChaos(directory, seed, is_ensemble=is_ensemble, only=cells)
    if part == SPARK:
        from millstream.testing.chaos.spark.rounds import SparkChaos

        return SparkChaos(directory, seed, only=cells)
    return (Chaos if part == LOG else BrokerChaos)(directory, seed)


class ChaosRun(NamedTuple):
    """How some rounds went."""

    rounds: int
    counts: Counter[str]
    failure: str | None
    """What was wrong and how to reproduce it."""


def run_chaos(
    rounds: int,
    seed: int,
    report: Callable[[str], None],
    *,
    part: str = LOG,
    cells: str = "",
    is_ensemble: bool = False,
) -> ChaosRun:
    """Rounds on fresh data in a temporary directory, which stays when one fails."""
    counts: Counter[str] = Counter()
    for first in range(0, rounds, ROUNDS_PER_LOG_MAX):
        directory = tempfile.mkdtemp(prefix="millstream-chaos-")
        made = create_rounds(
            directory, seed + first, part=part, cells=cells, is_ensemble=is_ensemble
        )
        with closing(made) as chaos:
            for number in range(first, min(first + ROUNDS_PER_LOG_MAX, rounds)):
                try:
                    report(chaos.run_round())
                    if number == rounds - 1:
                        chaos.check()
                except (Exception, InvariantViolated) as error:  # noqa: BLE001 - reported, and the run ends
                    command = f"make chaos ROUNDS={number - first + 1} SEED={seed + first}"
                    note = "content and damage repeat, the moments of the kills do not"
                    chosen = f' CELLS="{cells}"' if cells else ""
                    chosen += " ENSEMBLE=1" if is_ensemble else ""
                    command = f"{command} PART={part}{chosen}  # {note}"
                    lines = replay_lines(error, seed=seed + first, command=command)
                    return ChaosRun(number, counts + chaos.counts, f"{lines}\nfiles: {directory}")
        counts += chaos.counts
        rmtree(directory)
    return ChaosRun(rounds, counts, None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when a round failed."""
    parser = argparse.ArgumentParser(
        prog="python -m millstream.testing.chaos.run", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--part", choices=[ALL, *CHAOS_PARTS], default=ALL)
    parser.add_argument(
        "--cells",
        default="",
        help="run only kills or attacks whose names contain this text (not log and broker)",
    )
    parser.add_argument(
        "--ensemble", action="store_true", help="run the cluster on a real ZooKeeper ensemble"
    )
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    seed = options.seed if options.seed is not None else system_randomness().integer(0, 2**31)
    for part in CHAOS_PARTS if options.part == ALL else (options.part,):
        rounds = options.rounds or _rounds_of(part, options.cells)
        _print_line(f"{part}: chaos with seed {seed}, {rounds} rounds")
        run = run_chaos(
            rounds,
            seed,
            lambda line: _print_line(f"  {line}"),
            part=part,
            cells=options.cells,
            is_ensemble=options.ensemble,
        )
        for name, count in sorted(run.counts.items()):
            _print_line(f"{count:>10,}  {name}")
        if run.failure is not None:
            _print_line(run.failure)
            return 1
        _print_line(f"{part}: {run.rounds} rounds, everything acknowledged was found")
    return 0


def _rounds_of(part: str, cells: str) -> int:
    """The default number of rounds; one for every kill of Spark's matrix, and for every attack."""
    if part == HOSTILE:
        from millstream.testing.chaos.hostile.rounds import chosen_attacks

        return max(1, len(chosen_attacks(cells, seed=0)))
    if part != SPARK:
        return ROUNDS_DEFAULT
    return max(1, sum(cells in str(cell) for cell in matrix()))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
