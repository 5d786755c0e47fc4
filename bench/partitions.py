"""Many partitions in one process: `python -m bench.partitions create|clean|unclean ROOT COUNT`."""

import json
import os
import sys
import time
from pathlib import Path
from uuid import UUID

from bench.log import batch_of
from millstream.model.ids import LeaderEpoch, TopicId, TopicPartition
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import system_randomness
from millstream.storage.config import LogConfig
from millstream.storage.manager.log_manager import LogManager, NewPartition, StorageDependencies
from millstream.testing.sim.background import InlineBackground

CONFIG = LogConfig()


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def manager_of(root: str) -> LogManager:
    dependencies = StorageDependencies(
        OsDisk(), SystemClock(), system_randomness(), InlineBackground()
    )
    return LogManager(dependencies, [root])


def create(root: str, count: int) -> dict[str, float]:
    manager = manager_of(root)
    manager.start(lambda _partition, _topic_id: CONFIG)
    batch = batch_of(4096)
    before_kib, start = resident_kib(), time.perf_counter()
    for topic in range(count // 100):
        topic_id = TopicId(UUID(int=topic + 1))
        manager.create_many(
            [
                NewPartition(TopicPartition(f"topic-{topic}", number), topic_id, CONFIG)
                for number in range(100)
            ]
        )
    created_s = time.perf_counter() - start
    for log in manager:
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(0))
    per_partition = (resident_kib() - before_kib) / count
    open_files = len(os.listdir("/proc/self/fd"))
    manager.close()
    return {"create_s": created_s, "kib_per_partition": per_partition, "open_files": open_files}


def restart(root: str, name: str, *, is_stopped_cleanly: bool) -> dict[str, float]:
    manager = manager_of(root)
    start = time.perf_counter()
    manager.start(lambda _partition, _topic_id: CONFIG)
    seconds = time.perf_counter() - start
    if is_stopped_cleanly:
        manager.close()
    return {name: seconds}


def main() -> None:
    step, root, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if step == "create":
        facts = create(root, count)
    elif step == "clean":
        # Ends without a clean stop: the next start finds the directory of a killed process.
        facts = restart(root, "clean_start_s", is_stopped_cleanly=False)
    else:
        facts = restart(root, "unclean_start_s", is_stopped_cleanly=True)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
