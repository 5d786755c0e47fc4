"""Ours and Apache Kafka side by side with the same clients (`make bench PART=broker`).

QUICK=1 runs a few cells. CELLS=requests,produce picks groups.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import broker_produce, broker_requests
from bench.broker_generators import build
from bench.broker_systems import Systems, page_cache_seconds_per_gb, running
from bench.measure import Row, fact

GROUPS: dict[str, Callable[[Systems], list[Row]]] = {
    "requests": broker_requests.measure,
    "produce": broker_produce.measure,
}


def measure() -> list[Row]:
    build()
    chosen = os.environ.get("CELLS", ",".join(GROUPS)).split(",")
    rows: list[Row] = []
    Path("build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="build"))
    cost = page_cache_seconds_per_gb(directory)
    rows.append(fact("broker.page_cache", "dd of new files, CPU s/GB, paid by both", cost))
    with running(directory) as systems:
        for name in chosen:
            rows += GROUPS[name](systems)
    return rows
