"""Histories of real clients: one JSON object a line, written while they work, read while they do.

Any client in any language can write them; `history/checker.py` checks them. Kinds, by the key `t`:

    send   lane, n, topic, p, v          about to send value `v`, the lane's n-th
    ok     lane, n, offset, at           acknowledged, at a monotonic time in seconds; the offset is
                                         null where the client only learned that it is stored
    fail   lane, n, why                  certainly not stored
    info   lane, n, why                  unknown
    poll   c, topic, p, records          a consumer got [[offset, value], ...]
    final  topic, p, start, records      all of a partition, in the end
    error  why                           the client itself failed
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from millstream.testing.history.checker import (
    Anomaly,
    History,
    PartitionName,
    Run,
    Send,
    format_value,
)


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
        """Errors of the clients; each is a failure of the run."""
        self.acknowledged_at_s: dict[PartitionName, list[float]] = defaultdict(list)
        self.read: dict[tuple[str, PartitionName], int] = defaultdict(int)
        """How many records each consumer got."""
        self._without_offset: list[Send] = []
        """Acknowledged without an offset."""
        self._sends: dict[tuple[str, int], Send] = {}
        self._runs: dict[tuple[str, PartitionName], Run] = {}
        self._ends: dict[Path, int] = {}

    @property
    def acknowledged(self) -> int:
        return sum(len(times) for times in self.acknowledged_at_s.values())

    def take(self, path: Path) -> None:
        """The new lines of the file; an incomplete one waits."""
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

    def resolve_missing_offsets(self) -> list[Anomaly]:
        """After the last read: each is stored at some offset, or it is lost."""
        lost = []
        for send in self._without_offset:
            _, records = self.history.finals.get(send.partition, (0, []))
            offsets = [offset for offset, value in records if value == send.values[0]]
            if offsets:
                self.history.acknowledged(send, offsets[0])
            else:
                lost.append(
                    Anomaly("lost-write", f"{send} is nowhere: {format_value(send.values[0])}")
                )
        self._without_offset.clear()
        return lost

    def _send(self, line: Mapping[str, Any]) -> None:
        key = (line["lane"], line["n"])
        self._sends[key] = self.history.send(*key, _partition(line), [line["v"].encode()])

    def _sent(self, line: Mapping[str, Any]) -> Send:
        return self._sends[(line["lane"], line["n"])]

    def _ok(self, line: Mapping[str, Any]) -> None:
        send = self._sent(line)
        if line["offset"] is None:
            self._without_offset.append(send)
        else:
            self.history.acknowledged(send, line["offset"])
        self.acknowledged_at_s[send.partition].append(line["at"])

    def _fail(self, line: Mapping[str, Any]) -> None:
        self.history.refused(self._sent(line))

    def _info(self, line: Mapping[str, Any]) -> None:
        self._sent(line)  # the outcome was unknown before, and stays so

    def _poll(self, line: Mapping[str, Any]) -> None:
        consumer, partition = line["c"], _partition(line)
        run = self._runs.get((consumer, partition))
        if run is None:
            run = self.history.seek(consumer, partition, is_fenced=True)
            self._runs[(consumer, partition)] = run
        records = [(offset, value.encode()) for offset, value in line["records"]]
        self.read[(consumer, partition)] += len(records)
        self.history.polled(run, records[0][0] if run.polls else 0, records)

    def _final(self, line: Mapping[str, Any]) -> None:
        records = [(offset, value.encode()) for offset, value in line["records"]]
        self.history.record_final_read(_partition(line), line["start"], records)


def _partition(line: Mapping[str, Any]) -> PartitionName:
    return (line["topic"], line["p"])
