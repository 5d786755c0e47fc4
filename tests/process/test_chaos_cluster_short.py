"""A few rounds of the cluster's chaos: three brokers of ours, three replicas, a real client."""

import shutil

import pytest

from millstream.broker.broker import BrokerDependencies
from millstream.testing.chaos.cluster.actions import LATE_READERS, LATE_ROUNDS
from millstream.testing.chaos.cluster.rounds import CHANGED, ClusterChaos
from millstream.testing.chaos.network.world import require_networks
from millstream.testing.chaos.run import CLUSTER, run_chaos

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "coordination" not in BrokerDependencies.__dataclass_fields__,
        reason="brokers have no cluster mode",
    ),
]

SEED = 20_240_101
SHORT = ("kill", "pause past the session", "cut from coordination")
"""Each takes leaders away; the others are for `make chaos PART=cluster`."""


def run(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> dict[str, int]:
    require_networks()
    chosen = iter(names)
    monkeypatch.setattr(ClusterChaos, "run_round", lambda self: self.act(next(chosen)))
    done = run_chaos(len(names), SEED, lambda _: None, part=CLUSTER)
    assert done.failure is None, done.failure
    return done.counts


def test_what_a_cluster_acknowledged_survives_the_loss_of_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I-01, I-15, I-19, I-20, I-32, I-39..I-41."""
    counts = run(monkeypatch, SHORT)
    assert counts[CHANGED] == len(SHORT)
    assert counts["records acknowledged"] > 0
    assert counts["complete reads"] == 1
    assert counts["bytes equal on all replicas"] > 0
    assert counts["writes to old leaders, not acknowledged"] > 0


def test_a_cluster_grows_and_shrinks_without_its_clients_noticing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = run(monkeypatch, ("grow and shrink",))
    assert counts["records acknowledged"] > 0
    assert counts["complete reads"] == 1


def test_what_is_not_in_memory_is_read_right(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = run(monkeypatch, ("forget pages",) * 3)
    assert counts["bytes dropped from memory"] > 0
    assert counts["late readers"] == counts["forget pages"] * LATE_READERS * LATE_ROUNDS


def test_a_failure_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_networks()
    monkeypatch.setattr(ClusterChaos, "_begin", lambda _: 1 / 0)
    done = run_chaos(1, 7, lambda _: None, part=CLUSTER, cells="kill", is_ensemble=True)
    assert done.failure is not None
    assert 'make chaos ROUNDS=1 SEED=7 PART=cluster CELLS="kill" ENSEMBLE=1' in done.failure
    shutil.rmtree(done.failure.rpartition("files: ")[2])
