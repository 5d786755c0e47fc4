"""In the middle of the day the broker that leads the orders is killed, and nothing is lost."""

from collections.abc import Callable
from typing import Final

from examples.shop.pipeline import ORDERS
from examples.shop.processes import Brokers, DemoFailed
from examples.shop.progress import Story
from examples.shop.traffic import client_of
from millstream.client.admin import or_raise

PARTITION: Final = 0
"""Its leader is the one."""


class Accident:
    """Happens once, when half of the orders are written."""

    def __init__(self, brokers: Brokers, say: Callable[[str], None]) -> None:
        self._brokers = brokers
        self._say = say
        self.killed: int | None = None

    def check(self, story: Story) -> None:
        """Whether it is time. Raises DemoFailed."""
        if self.killed is not None or 2 * story.written < story.event_count:
            return
        topics = client_of(self._brokers.servers).describe_topics([ORDERS])
        leader = or_raise(topics[ORDERS]).partitions[PARTITION].leader
        if leader is None:
            raise DemoFailed(f"{ORDERS}-{PARTITION} has no leader")
        self._brokers.kill(leader)
        self.killed = leader
        self._say(f"broker {leader}, which led {ORDERS}-{PARTITION}, was killed (SIGKILL)")
