"""Consumer groups of ours and of Apache Kafka's side by side (`make bench PART=groups`).

QUICK=1 runs smaller groups and fewer offsets. CELLS=stable,rebalance,commits,loading picks some.
Members are our own (`testing/protocol_members`), the same for both: they speak the protocol and do
nothing else, in one process, so that hundreds cost less than what is measured.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench import groups_commits, groups_loading, groups_members
from bench.broker_generators import build
from bench.broker_systems import Systems, running
from bench.measure import Row
from millstream.testing.peers.runtimes import MissingRuntimeError

CELLS: Final[dict[str, Callable[[Systems], list[Row]]]] = {
    "commits": groups_commits.measure,
    "stable": groups_members.measure_stable,
    "rebalance": groups_members.measure_rebalance,
    "loading": groups_loading.measure,
}
SETTINGS: Final = {
    # The default of both systems; the harness of the tests has another value for the peer.
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.topic.num.partitions": "50",
}


def measure() -> list[Row]:
    try:
        build()
    except MissingRuntimeError as error:
        sys.exit(f"bench: {error}")
    chosen = os.environ.get("CELLS", ",".join(CELLS)).split(",")
    Path("build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="build"))
    rows: list[Row] = []
    with running(directory, SETTINGS) as systems:
        for name in chosen:
            rows += CELLS[name](systems)
    return rows
