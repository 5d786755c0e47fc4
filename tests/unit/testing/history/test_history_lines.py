"""Histories of real clients: read while they are written, and what is wrong in them is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.testing.history.checker import Outcome, check_history
from millstream.testing.history.lines import HistoryReader, HistoryWriter

TOPIC = "t"
PARTITION = (TOPIC, 0)


def send(number: int, lane: str = "w-0") -> dict[str, Any]:
    return {"t": "send", "lane": lane, "n": number, "topic": TOPIC, "p": 0, "v": f"{lane}:{number}"}


def ok(number: int, offset: int | None, lane: str = "w-0") -> dict[str, Any]:
    return {"t": "ok", "lane": lane, "n": number, "offset": offset, "at": float(number)}


def poll(*records: tuple[int, str]) -> dict[str, Any]:
    return {"t": "poll", "c": "r", "topic": TOPIC, "p": 0, "records": list(records)}


def final(*records: tuple[int, str]) -> dict[str, Any]:
    return {"t": "final", "topic": TOPIC, "p": 0, "start": 0, "records": list(records)}


def anomalies(*lines: dict[str, Any]) -> list[str]:
    reader = HistoryReader()
    for line in lines:
        reader.take_line(line)
    return [one.kind for one in (*reader.resolve_missing_offsets(), *check_history(reader.history))]


WRITTEN = [send(0), ok(0, 0), send(1), ok(1, 1)]
STORED = [(0, "w-0:0"), (1, "w-0:1")]


def test_an_honest_history_passes() -> None:
    assert anomalies(*WRITTEN, poll(*STORED), final(*STORED)) == []


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ([*WRITTEN, final(*STORED[:1])], ["lost-write"]),
        ([*WRITTEN, final((0, "w-0:1"), (1, "w-0:0"))], ["inconsistent-offsets"] * 2),
        ([*WRITTEN, final(*STORED, (2, "w-0:1"))], ["duplicate"]),
        ([*WRITTEN, final(*STORED, (2, "nobody's"))], ["phantom"]),
        ([*WRITTEN, poll(STORED[1]), final(*STORED)], ["poll-skip"]),
        ([*WRITTEN, poll(*STORED), poll(STORED[0]), final(*STORED)], ["nonmonotonic-poll"]),
        ([*WRITTEN, send(2), ok(2, None), final(*STORED)], ["lost-write"]),
        ([*WRITTEN, send(2), {"t": "fail", "lane": "w-0", "n": 2, "why": ""},
          final(*STORED, (2, "w-0:2"))], ["phantom"]),
    ],
    ids=["lost", "swapped", "twice", "nobody's", "skipped", "back", "without offset", "refused"],
)  # fmt: skip
def test_what_is_wrong_is_found(lines: list[dict[str, Any]], kinds: list[str]) -> None:
    assert set(kinds) <= set(anomalies(*lines))


def test_nobody_knows_may_be_there_or_not() -> None:
    unknown = [send(2), {"t": "info", "lane": "w-0", "n": 2, "why": "no answer"}]
    assert anomalies(*WRITTEN, *unknown, final(*STORED)) == []
    assert anomalies(*WRITTEN, *unknown, final(*STORED, (2, "w-0:2"))) == []


def test_acknowledged_without_an_offset_counts_where_it_is_found() -> None:
    """As the answer to a batch that was sent again long after it was stored."""
    later = [send(2), ok(2, None)]
    assert anomalies(*WRITTEN, *later, final(*STORED, (2, "w-0:2"))) == []


def test_a_file_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    path, reader = tmp_path / "history.jsonl", HistoryReader()
    reader.take(path)  # no client has begun
    writer = HistoryWriter(path)
    for line in WRITTEN[:2]:
        writer.write(line["t"], **{name: value for name, value in line.items() if name != "t"})
    reader.take(path)
    assert reader.acknowledged == 1
    half = json.dumps(WRITTEN[2])
    with path.open("a") as file:
        file.write(half[:10])
        file.flush()
        reader.take(path)
        file.write(half[10:] + "\n")
    reader.take(path)
    reader.take(path)
    assert [one.outcome for one in reader.history.sends] == [Outcome.OK, Outcome.INFO]
    writer.write("error", why="planted")
    writer.close()
    reader.take(path)
    assert reader.errors == ["planted"]
    assert reader.acknowledged_at_s[PARTITION] == [0.0]
