"""PF5 again, now that a start has a keeper, a registration and an election in it.

`millstream up` on nothing against a formatted broker of Kafka's, the fixture of tests, and three
brokers until all of them have a record.
"""

import socket
from pathlib import Path

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_start import (
    FIXTURE_AT_MOST,
    FIXTURE_STARTS,
    PROCESS_AT_MOST,
    STARTS,
    fixture_starts,
    process_starts,
    started_peer,
)
from bench.broker_systems import AGAINST, OURS, Server, System
from bench.cluster_systems import BROKERS, KafkaCluster
from bench.measure import Row
from millstream.testing.peers.kafka import free_ports

CLUSTER_STARTS = 2 if QUICK else STARTS


class Up(Server):
    """`millstream up`: keeper and brokers, on ports that follow each other."""

    name = OURS

    def __init__(self, directory: Path, count: int = 1, *, tree: Path | None = None) -> None:
        ports = _neighbours(count)
        self.address = ",".join(f"127.0.0.1:{port}" for port in ports)
        options = ["--brokers", str(count), "--port", str(ports[0])]
        arguments = ["up", *options, "--data-dir", str(directory / "data")]
        super().__init__(directory, arguments, tree=tree)


def _neighbours(count: int) -> list[int]:
    """Free ports one behind the other."""
    while True:
        (first,) = free_ports(1)
        wanted = list(range(first, first + count))
        if all(_is_free(port) for port in wanted):
            return wanted


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def measure() -> list[Row]:
    ours, peer = process_starts(Up, _one_peer)
    what = "PF5 `up` to first acknowledged record, s"
    rows = [lower_is_better("cluster.start", what, ours, peer, at_most=PROCESS_AT_MOST)]
    what = f"PF5 fixture to first acknowledged record, imports included, median of {FIXTURE_STARTS}"
    fixture = fixture_starts()
    rows.append(
        lower_is_better("cluster.fixture", f"{what}, s", fixture, peer, at_most=FIXTURE_AT_MOST)
    )
    return [*rows, _three_brokers()]


def _one_peer(directory: Path) -> System:
    return started_peer(directory) if AGAINST is None else Up(directory, tree=Path(AGAINST))


def _three_brokers() -> Row:
    ours, peer = process_starts(_three_of_ours, _three_peers, count=CLUSTER_STARTS)
    what = f"start of {BROKERS} brokers to a record that all of them have, s"
    return lower_is_better("cluster.start.three", what, ours, peer, at_most=None)


def _three_of_ours(directory: Path) -> Up:
    return Up(directory, BROKERS)


def _three_peers(directory: Path) -> System:
    if AGAINST is not None:
        return Up(directory, BROKERS, tree=Path(AGAINST))
    cluster = KafkaCluster(directory)
    cluster.format()
    return cluster
