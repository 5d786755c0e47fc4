"""What the handlers that describe or change topics have in common."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from millstream.broker.requests.services import Services
from millstream.controller.image import PartitionImage, TopicImage
from millstream.controller.topics import TopicDefaults
from millstream.model.errors import OperatingError

T = TypeVar("T")

WAIT_MIN_MS: Final = 1_000
"""The minimum for a change, whatever the client allows: some send 0, and it takes milliseconds."""


def topic_defaults(services: Services) -> TopicDefaults:
    """For topics that are created without a number of partitions or replicas."""
    return services.configs.topic_defaults()


async def within(timeout_ms: int, change: Coroutine[Any, Any, T]) -> T:
    """The change's result; TimeoutError when it takes longer. The change continues."""
    async with asyncio.timeout(max(timeout_ms, WAIT_MIN_MS) / 1000):
        return await change


def is_log_offline(services: Services, topic: TopicImage, partition: PartitionImage) -> bool:
    """Whether this broker leads the partition and has no disk for it any more."""
    if partition.leader != services.broker_id:
        return False
    try:
        leader = services.partitions.get((topic.name, partition.index))
    except OperatingError:
        return True
    return leader.log.failure is not None
