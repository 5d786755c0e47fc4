"""What a start says about a log that lost records."""

import json
from pathlib import Path
from typing import Any

from kits.process.broker_process import broker_process
from kits.process.wire_client import build_batch

REMOVED = "recovery removed records from the end of a log"


def lines(stderr: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in stderr.read_text().splitlines() if one.startswith("{")]


def test_recovery_that_cuts_records_says_which_and_how_many(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker, broker.client() as client:
        for topic in ("cut", "whole"):
            client.create_topic(topic)
            for _ in range(5):
                client.produce(topic, build_batch([(None, b"value")] * 3))
        broker.kill()
    (segment,) = (tmp_path / "data" / "cut-0").glob("*.log")
    raw = segment.read_bytes()
    batch_bytes = len(raw) // 5
    segment.write_bytes(raw[:-10])
    with broker_process(tmp_path):
        (line,) = [one for one in lines(tmp_path / "stderr") if one["message"] == REMOVED]
    found = {
        key: line[key] for key in ("partition", "from_offset", "to_offset", "records", "bytes")
    }
    assert found == {
        "partition": "cut-0",
        "from_offset": 12,
        "to_offset": 15,
        "records": 3,
        "bytes": batch_bytes - 10,
    }
