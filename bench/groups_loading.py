"""A million committed offsets: how soon they are served again after a restart."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_systems import System, Systems
from bench.broker_wire import (
    Topic,
    connect,
    create_topic,
    delete_topics,
    exchange,
    frame_of,
    send_and_receive,
)
from bench.groups_commits import VERSION, commit_request, wait_until_committed
from bench.measure import Row, fact
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

PARTITIONS: Final = 200
GROUPS: Final = 250 if QUICK else 5_000
CONNECTIONS: Final = 4
RUNS: Final = 1 if QUICK else 3
FETCH_VERSION: Final = 8
SERVED_MAX_S: Final = 300.0


def measure(systems: Systems) -> list[Row]:
    ready: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    written: dict[str, float] = {}
    for system in systems:
        topic = create_topic(system.address, PARTITIONS)
        prefix = uuid.uuid4().hex[:6]
        written[system.name] = fill(system, topic, prefix)
        times = [served_after_restart(system, prefix) for _ in range(RUNS)]
        ready[system.name] = [one for one, _ in times]
        whole[system.name] = [one for _, one in times]
        delete_topics(system.address, [topic])
    ours, peer = (system.name for system in systems)
    offsets = PARTITIONS * GROUPS
    answered = f"{offsets:,} offsets after a restart: s"
    rows = [
        lower_is_better(
            f"groups.loading.{name}", f"{answered} {what}", found[ours], found[peer], at_most=None
        )
        for name, what, found in (
            ("ready", "from ready to all served", ready),
            ("start", "from start to all served", whole),
        )
    ]
    speed = offsets / written[ours]
    ratio = written[peer] / written[ours]
    what = f"offsets/s written, {PARTITIONS} in a commit"
    return [*rows, fact("groups.loading.writing", what, speed, ratio=round(ratio, 3))]


def fill(system: System, topic: Topic, prefix: str) -> float:
    """Commit them all; the seconds it took."""
    offsets = {index: 1_000_000 + index for index in range(PARTITIONS)}
    wait_until_committed(system, commit_request(f"{prefix}-0", topic.name, offsets))
    began_s = time.perf_counter()

    def commit_some(first: int) -> None:
        with connect(system.address) as connection:
            for number in range(first, GROUPS, CONNECTIONS):
                request = commit_request(f"{prefix}-{number}", topic.name, offsets)
                exchange(connection, frame_of(request, VERSION))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(commit_some, range(CONNECTIONS)))
    return time.perf_counter() - began_s


def served_after_restart(system: System, prefix: str) -> tuple[float, float]:
    """Seconds from ready and from the start until every group of a sample has its offsets."""
    system.stop()
    started_s = time.perf_counter()
    system.start()
    ready_s = time.perf_counter()
    for number in range(0, GROUPS, max(1, GROUPS // 500)):  # all partitions of the offsets topic
        while not is_served(system, f"{prefix}-{number}"):
            if time.perf_counter() - ready_s > SERVED_MAX_S:
                raise TimeoutError(f"{system.name} does not serve {prefix}-{number}")
    now_s = time.perf_counter()
    return now_s - ready_s, now_s - started_s


def is_served(system: System, group: str) -> bool:
    group_request = OffsetFetchRequestGroup(group_id=group, topics=None)
    (answered,) = send_and_receive(
        system.address, OffsetFetchRequest(groups=[group_request]), FETCH_VERSION
    ).groups
    if answered.error_code:
        return False
    found = sum(len(topic.partitions) for topic in answered.topics)
    if found != PARTITIONS:
        raise RuntimeError(f"{system.name} has {found} offsets of {group}, not {PARTITIONS}")
    return True
