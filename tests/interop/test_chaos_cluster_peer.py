"""The cluster's chaos on Apache Kafka: what it demands of ours, a known good cluster gives."""

from contextlib import closing
from pathlib import Path

import pytest

from millstream.testing.chaos.cluster.peer import KafkaProcesses
from millstream.testing.chaos.cluster.rounds import ClusterChaos
from millstream.testing.chaos.network.world import require_networks

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEED = 1
ACTIONS = (
    "kill",
    "pause past the session",
    "cut from coordination",
    "cut from peers",
    "stop",
    "kill all",
    "grow and shrink",
)


@pytest.mark.timeout(600)
def test_a_known_good_cluster_passes(tmp_path: Path, jars: Path) -> None:
    require_networks()
    with closing(ClusterChaos(str(tmp_path), SEED, factory=KafkaProcesses(jars))) as chaos:
        for name in ACTIONS:
            chaos.act(name)
        chaos.check()
        counts = chaos.counts
    assert counts["records acknowledged"] > 0
    assert counts["complete reads"] == 1
    assert counts["ms without a leader, longest"] > 0
    assert counts["writes to old leaders, not acknowledged"] > 0
