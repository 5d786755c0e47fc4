"""Reads committed offsets of groups continuously, as a tool that shows their lag would.

It queries the coordinators over the wire from a node of its own, which is never cut off. An answer
with an error is ignored; an answer without a partition means that nothing is committed there.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from millstream.testing.chaos.cluster.processes import BrokerProcess
from millstream.testing.chaos.cluster.view import send_from_node
from millstream.testing.chaos.network.world import Node
from millstream.testing.history.group_events import (
    NOTHING_COMMITTED,
    ObservedOffsets,
    PartitionName,
)
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

REQUEST_TIMEOUT_S: Final = 3.0
PAUSE_S: Final = 0.3
FIND_VERSION: Final = 4
FETCH_VERSION: Final = 8

Brokers = Callable[[], Iterable[BrokerProcess]]
Places = Callable[[], Iterable[PartitionName]]


def coordinator_of(observer: Node, brokers: Iterable[BrokerProcess], group: str) -> int | None:
    """The id of the group's coordinator, as the first broker reports that knows one."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    for broker in brokers:
        try:
            answer = send_from_node(
                observer, broker.node.address, request, FIND_VERSION, REQUEST_TIMEOUT_S
            )
        except OSError:
            continue
        (found,) = answer.coordinators
        if not found.error_code:
            return int(found.node_id)
    return None


class OffsetMonitor:
    """Polls from a thread until it is closed; `take` returns what is new for one group."""

    def __init__(self, node: Node, brokers: Brokers) -> None:
        self.node: Final = node
        self._brokers = brokers
        self._places: dict[str, Places] = {}
        self._coordinators: dict[str, int] = {}
        self._seen: dict[str, list[ObservedOffsets]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset monitor", daemon=True)
        self._failure: Exception | None = None

    def watch(self, group: str, places: Places) -> None:
        """Watch a group from now on, at the partitions that it reads then."""
        with self._lock:
            self._places[group] = places
            self._seen[group] = []
        if not self._thread.is_alive():
            self._thread.start()

    def clear(self) -> None:
        """Stop watching all groups."""
        with self._lock:
            self._places.clear()
            self._seen.clear()

    def take(self, group: str) -> list[ObservedOffsets]:
        if self._failure is not None:
            raise self._failure
        with self._lock:
            found, self._seen[group] = self._seen[group], []
        return found

    def close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(2 * REQUEST_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(PAUSE_S):
                with self._lock:
                    groups = list(self._places.items())
                for group, places in groups:
                    self._poll(group, places)
        except Exception as error:  # noqa: BLE001 - raised by `take`
            self._failure = error

    def _poll(self, group: str, places: Places) -> None:
        known = list(places())
        brokers = {one.broker_id: one for one in self._brokers()}
        broker = brokers.get(self._coordinators.get(group, -1))
        if broker is None:
            found = coordinator_of(self.node, brokers.values(), group)
            if found is not None:
                self._coordinators[group] = found
            return
        group_request = OffsetFetchRequestGroup(group_id=group, topics=None)
        request = OffsetFetchRequest(groups=[group_request], require_stable=True)
        began_ns = time.monotonic_ns()
        try:
            answer = send_from_node(
                self.node, broker.node.address, request, FETCH_VERSION, REQUEST_TIMEOUT_S
            )
        except OSError:
            self._coordinators.pop(group, None)
            return
        at_ns, (answered,) = time.monotonic_ns(), answer.groups
        if answered.error_code:
            self._coordinators.pop(group, None)
            return
        offsets = dict.fromkeys(known, NOTHING_COMMITTED)
        for topic in answered.topics:
            for one in topic.partitions:
                place = (topic.name, one.partition_index)
                if one.error_code:
                    offsets.pop(place, None)  # the client has to retry
                else:
                    offsets[place] = one.committed_offset
        with self._lock:
            if group in self._seen:
                self._seen[group].append(ObservedOffsets(at_ns, began_ns, offsets))
