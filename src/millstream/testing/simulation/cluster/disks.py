"""Checks of a simulated cluster's disks when nothing runs any more."""

from collections.abc import Mapping

from millstream.storage.scan.partition_scan import scan_checkpoints, scan_partition
from millstream.testing.history.checker import Outcome, Send, format_value
from millstream.testing.history.cluster_views import CommittedPartition, CommittedState, batches_in
from millstream.testing.record_batches import read_records
from millstream.testing.sim.disk import SimDisk
from millstream.testing.simulation.broker.watch import require
from millstream.testing.simulation.cluster.brokers import BrokerMachine
from millstream.testing.simulation.cluster.scene import ClusterScene


def scan_disks(brokers: Mapping[int, BrokerMachine]) -> None:
    """I-10: the files that a clean stop left have no problems."""
    for machine in brokers.values():
        disk = machine.node.disk
        problems: list[str] = []
        for directory in machine.directories:
            problems += scan_checkpoints(disk, directory).problems
            for name in disk.list_directory(directory):
                path = f"{directory}/{name}"
                if disk.is_directory(path) and name.rpartition("-")[2].isdigit():
                    problems += scan_partition(disk, path).problems
        require(not problems, "I-10 files", broker=machine.host, problems=problems[:4])


def check_acknowledged(
    scene: ClusterScene, brokers: Mapping[int, BrokerMachine], committed: CommittedState
) -> None:
    """I-01: every member of the ISR has what was acknowledged, at its offset."""
    sends = [
        send
        for send in scene.history.sends
        if send.outcome is Outcome.OK and send.partition[0] in scene.promised
    ]
    for key, partition in committed.partitions.items():
        mine = [send for send in sends if send.partition == (key.topic, key.index)]
        for member in partition.isr:
            if member in scene.excuses.wounded or not committed.is_registration_processed(member):
                continue
            machine = brokers[member]
            if mine and machine.node.disk.storage.powered:
                _check_member(machine, partition, mine)


def _check_member(machine: BrokerMachine, partition: CommittedPartition, sends: list[Send]) -> None:
    stored: dict[int, bytes] = {}
    for directory in machine.directories:
        stored |= _records_in(machine.node.disk, f"{directory}/{partition.key}")
    for send in sends:
        for offset, value in enumerate(send.values, send.base_offset):
            require(
                stored.get(offset) == value,
                "I-01 an acknowledged record is not on the disk of a member of the ISR",
                broker=machine.host,
                partition=partition,
                offset=offset,
                sent=f"{format_value(value)} by {send}",
                there=format_value(stored[offset]) if offset in stored else None,
            )


def _records_in(disk: SimDisk, directory: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    if not disk.exists(directory):
        return found
    for name in disk.list_directory(directory):
        if name.endswith(".log"):
            data = bytes(disk.storage.live.file(f"{directory}/{name}").content)
            if batches_in(data):
                found |= {one.offset: one.value or b"" for one in read_records(data)}
    return found
