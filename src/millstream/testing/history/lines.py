"""Histories of real clients: one JSON object a line, written while they work, read while they do.

Any client in any language can write them; `history/checker.py` checks them. Kinds, by the key `t`:

    send   lane, n, topic, p, v          about to send value `v`, the lane's n-th
    ok     lane, n, offset, at           acknowledged, at a monotonic time in seconds; the offset is
                                         null where the client was only told that it is stored
    fail   lane, n, why                  certainly not stored
    info   lane, n, why                  nobody knows
    poll   c, topic, p, records          a consumer got [[offset, value], ...]
    final  topic, p, start, records      all of a partition, in the end
    error  why                           the client itself failed
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from millstream.testing.history.checker import Anomaly, History, Place, Run, Send, told_of


class HistoryWriter:
    """Appends lines to a file; each is whole before the next begins, also when we are killed."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: object) -> None:
        self._file.write(json.dumps({"t": kind, **fields}, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


class HistoryReader:
    """Collects the lines of several clients into one history, as far as they are written."""

    def __init__(self) -> None:
        self.history = History()
        self.errors: list[str] = []
        """What the clients could not do; each is a failure of the run."""
        self.acknowledged_at_s: dict[Place, list[float]] = defaultdict(list)
        self.read: dict[tuple[str, Place], int] = defaultdict(int)
        """How many records each consumer was given."""
        self._unplaced: list[Send] = []
        """Acknowledged at an offset that nobody told."""
        self._sends: dict[tuple[str, int], Send] = {}
        self._runs: dict[tuple[str, Place], Run] = {}
        self._ends: dict[Path, int] = {}

    @property
    def acknowledged(self) -> int:
        return sum(len(times) for times in self.acknowledged_at_s.values())

    def take(self, path: Path) -> None:
        """The lines that are new in the file; one that is not yet whole waits."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._ends.get(path, 0))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._ends[path] = self._ends.get(path, 0) + whole
        for line in data[:whole].splitlines():
            self.take_line(json.loads(line))

    def take_line(self, line: Mapping[str, Any]) -> None:
        """One event."""
        kinds: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "send": self._send,
            "ok": self._ok,
            "fail": self._fail,
            "info": self._info,
            "poll": self._poll,
            "final": self._final,
            "error": lambda found: self.errors.append(found["why"]),
        }
        kinds[line["t"]](line)

    def place_the_unplaced(self) -> list[Anomaly]:
        """After the last read: each was stored somewhere, or it is lost."""
        lost = []
        for send in self._unplaced:
            _, records = self.history.finals.get(send.place, (0, []))
            offsets = [offset for offset, value in records if value == send.values[0]]
            if offsets:
                self.history.acknowledged(send, offsets[0])
            else:
                lost.append(Anomaly("lost-write", f"{send} is nowhere: {told_of(send.values[0])}"))
        self._unplaced.clear()
        return lost

    def _send(self, line: Mapping[str, Any]) -> None:
        key = (line["lane"], line["n"])
        self._sends[key] = self.history.send(*key, _place(line), [line["v"].encode()])

    def _sent(self, line: Mapping[str, Any]) -> Send:
        return self._sends[(line["lane"], line["n"])]

    def _ok(self, line: Mapping[str, Any]) -> None:
        send = self._sent(line)
        if line["offset"] is None:
            self._unplaced.append(send)
        else:
            self.history.acknowledged(send, line["offset"])
        self.acknowledged_at_s[send.place].append(line["at"])

    def _fail(self, line: Mapping[str, Any]) -> None:
        self.history.refused(self._sent(line))

    def _info(self, line: Mapping[str, Any]) -> None:
        self._sent(line)  # unknown it was before, and stays

    def _poll(self, line: Mapping[str, Any]) -> None:
        consumer, place = line["c"], _place(line)
        run = self._runs.get((consumer, place))
        if run is None:
            run = self.history.seek(consumer, place, is_fenced=True)
            self._runs[(consumer, place)] = run
        records = [(offset, value.encode()) for offset, value in line["records"]]
        self.read[(consumer, place)] += len(records)
        self.history.polled(run, records[0][0] if run.polls else 0, records)

    def _final(self, line: Mapping[str, Any]) -> None:
        records = [(offset, value.encode()) for offset, value in line["records"]]
        self.history.read_in_the_end(_place(line), line["start"], records)


def _place(line: Mapping[str, Any]) -> Place:
    return (line["topic"], line["p"])
