"""The disks of a simulated cluster when nothing runs any more: what they say is what is left."""

from collections.abc import Mapping

from millstream.storage.scan.partition_scan import scan_checkpoints, scan_partition
from millstream.testing.history.checker import Outcome, Send, told_of
from millstream.testing.history.cluster_views import CommittedPartition, CommittedState, batches_in
from millstream.testing.record_batches import read_records
from millstream.testing.sim.disk import SimDisk
from millstream.testing.simulation.broker.watch import require
from millstream.testing.simulation.cluster.brokers import BrokerMachine
from millstream.testing.simulation.cluster.scene import ClusterScene


def scan_disks(brokers: Mapping[int, BrokerMachine]) -> None:
    """I-10: nothing that a clean stop left has a fault."""
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
        if send.outcome is Outcome.OK and send.place[0] in scene.promised
    ]
    for key, partition in committed.partitions.items():
        mine = [send for send in sends if send.place == (key.topic, key.index)]
        for member in partition.isr:
            if member in scene.excuses.wounded or not committed.is_settled(member):
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
                sent=f"{told_of(value)} by {send}",
                there=told_of(stored[offset]) if offset in stored else None,
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
