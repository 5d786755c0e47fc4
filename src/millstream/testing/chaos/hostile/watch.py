"""What an attack does to a cluster: memory, log lines, lost sessions, other clients' waits."""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from millstream.model.limits import MIB
from millstream.testing.chaos.cluster.processes import NodeProcess

SAMPLE_INTERVAL_S: Final = 0.1
RESIDENT_STOP_BYTES: Final = 6 * 1024 * MIB
"""The attack is ended early when a process takes this much: the machine has other work."""
SESSION_LINES: Final = (
    b"no longer registered",
    b"fenced by controller",
)
"""Lines in a broker's log, each of which means that it lost its session or its leaderships."""
_PAGE_BYTES: Final = 4096


def resident_bytes(process_id: int) -> int:
    """0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


class MemoryWatch:
    """Samples the resident memory of processes from a thread of its own, until `stop`."""

    def __init__(self, process_ids: Mapping[str, int]) -> None:
        self._process_ids = dict(process_ids)
        self.peaks: dict[str, int] = dict.fromkeys(process_ids, 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory watch", daemon=True)
        self._thread.start()

    def now(self) -> dict[str, int]:
        return {name: resident_bytes(one) for name, one in self._process_ids.items()}

    @property
    def is_too_much(self) -> bool:
        return max(self.peaks.values()) > RESIDENT_STOP_BYTES

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(SAMPLE_INTERVAL_S):
            for name, size in self.now().items():
                self.peaks[name] = max(self.peaks[name], size)


class LogWatch:
    """New lines in the logs of processes, and which of them tell of a lost session."""

    def __init__(self, processes: Iterable[NodeProcess]) -> None:
        self._ends = {
            one.directory / "stderr": (one.directory / "stderr").stat().st_size for one in processes
        }

    def new_lines(self) -> list[bytes]:
        found: list[bytes] = []
        for path, end in self._ends.items():
            with path.open("rb") as file:
                file.seek(end)
                found += file.read().splitlines()
        return found


def session_losses(lines: Iterable[bytes]) -> int:
    return sum(any(one in line for one in SESSION_LINES) for line in lines)


class Waits(NamedTuple):
    """How long a client's records took, in milliseconds."""

    records: int
    p50: float
    p99: float
    worst: float
    failures: int


def waits_of(samples: Sequence[tuple[float, float, int]]) -> Waits:
    """From (due, seconds, failed attempts) of every record."""
    times = sorted(took_s * 1000 for _, took_s, _ in samples)
    if not times:
        return Waits(0, 0.0, 0.0, 0.0, 0)
    failures = sum(failed for _, _, failed in samples)
    return Waits(
        len(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1], failures
    )


class ProbeReader:
    """What the probe has written so far."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._path = path
        self._partitions = partitions
        self._end = 0
        self._passed_s: dict[int, float] = {}
        """By partition: due then, and acknowledged."""
        self.samples: list[tuple[float, float, int]] = []

    def take(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._end)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._end += whole
        for line in data[:whole].splitlines():
            one = json.loads(line)
            self._passed_s[one["p"]] = one["at"]
            self.samples.append((one["at"], one["s"], one["failures"]))

    def has_passed(self, at_s: float) -> bool:
        """Whether everything that was due until then has its answer."""
        self.take()
        return len(self._passed_s) == self._partitions and min(self._passed_s.values()) >= at_s

    def between(self, begin_s: float, end_s: float) -> list[tuple[float, float, int]]:
        return [one for one in self.samples if begin_s <= one[0] <= end_s]
