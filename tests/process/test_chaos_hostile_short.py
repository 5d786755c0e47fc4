"""A few attacks of `make chaos PART=hostile` on three brokers of ours under load."""

import shutil
from pathlib import Path

import pytest

from millstream.testing.chaos.hostile.catalogue import all_attacks, attack_named
from millstream.testing.chaos.hostile.rounds import HostileChaos
from millstream.testing.chaos.network.world import require_networks
from millstream.testing.chaos.run import HOSTILE, run_chaos

pytestmark = pytest.mark.slow

SEED = 20_240_101
SHORT = (
    "Metadata without reading on 15 connections",
    "half-sent requests",
    "bytes one by one",
    "idle HTTP connections",
    "answers behind fetches that wait",
    "28 MB of unknown tags",
    "ElectLeaders of 3,900,000 numbers",
    "Fetch of 490,000 partitions",
    "bombs of zstd",
    "refused batches, repeated",
    "keeper: garbage",
    "keeper: reads and deletes without the secret",
    "PullMetadata from a client",
    "Fetch with a replica id from a client",
    "BrokerHeartbeat from a client",
    "malformed Envelopes",
    "random 1",
)
"""One of each kind. Of a flood a second is enough; a large request has its full size."""
SECONDS = 1.0
P99_MAX_MS = 5_000.0
"""A machine that is busy with other tests makes everybody wait; `make chaos` has the true limit."""


def test_attacks_harm_nobody_else(tmp_path: Path) -> None:
    """I-01, I-20, I-34: no session lost, no restart, nothing lost or twice, memory bounded."""
    require_networks()
    chaos = HostileChaos(str(tmp_path), SEED)
    try:
        for number, name in enumerate(SHORT):
            attack = attack_named(name)
            figures = chaos.run(attack, victim=number % 3 + 1, seconds=SECONDS)
            assert figures.judge(p99_max_ms=P99_MAX_MS) == [], figures.line([])
        chaos.check()
        assert chaos.counts["records acknowledged and found"] > 0
        assert chaos.counts["bytes equal on all replicas"] > 0
    finally:
        chaos.close()


def test_attacks_have_names_of_their_own() -> None:
    names = [one.name for one in all_attacks()]
    assert len(set(names)) == len(names)
    assert set(SHORT) - {"random 1"} <= set(names)


def test_a_failed_attack_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_networks()
    monkeypatch.setattr(HostileChaos, "run", lambda _, attack, **__: 1 / 0)
    done = run_chaos(1, 7, lambda _: None, part=HOSTILE, cells="bombs of zstd")
    assert done.failure is not None
    assert 'make chaos ROUNDS=1 SEED=7 PART=hostile CELLS="bombs of zstd"' in done.failure
    shutil.rmtree(done.failure.rpartition("files: ")[2])
