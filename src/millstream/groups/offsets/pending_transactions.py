"""Offsets of open transactions, until the marker commits or aborts them."""

from collections.abc import Collection, Iterator

from millstream.groups.offsets.packed import Packed
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import GroupId, ProducerId
from millstream.model.invariant import invariant


class PendingOffsets:
    """By producer, because a marker names the producer; and by group, for queries."""

    __slots__ = ("_by_producer", "_groups")

    def __init__(self) -> None:
        self._by_producer: dict[ProducerId, dict[OffsetKey, Packed]] = {}
        self._groups: dict[GroupId, dict[OffsetKey, set[ProducerId]]] = {}

    def put(self, producer_id: ProducerId, key: OffsetKey, packed: Packed) -> None:
        """A later one of the same transaction replaces an earlier one."""
        self._by_producer.setdefault(producer_id, {})[key] = packed
        self._groups.setdefault(key.group_id, {}).setdefault(key, set()).add(producer_id)

    def remove(self, key: OffsetKey) -> None:
        """From all transactions: the offset was deleted after they had written it."""
        for producer_id in self._forget(key):
            mine = self._by_producer[producer_id]
            del mine[key]
            if not mine:
                del self._by_producer[producer_id]

    def end(self, producer_id: ProducerId) -> dict[OffsetKey, Packed]:
        """Remove and return what the producer's transaction has written."""
        ended = self._by_producer.pop(producer_id, {})
        for key in ended:
            producers = self._groups[key.group_id][key]
            invariant(producer_id in producers, "pending offset without its producer", key=key)
            producers.remove(producer_id)
            if not producers:
                self._forget(key)
        return ended

    def has(self, key: OffsetKey) -> bool:
        """Whether an open transaction has written this offset."""
        return key in self._groups.get(key.group_id, ())

    def keys_of(self, group_id: GroupId) -> Collection[OffsetKey]:
        """Of all transactions."""
        return self._groups.get(group_id, {}).keys()

    def __iter__(self) -> Iterator[tuple[OffsetKey, Packed]]:
        """All of them; a key is repeated for each transaction that has it."""
        for offsets in self._by_producer.values():
            yield from offsets.items()

    def group_ids(self) -> Iterator[GroupId]:
        """Groups that transactions will commit offsets of."""
        return iter(self._groups)

    def _forget(self, key: OffsetKey) -> Collection[ProducerId]:
        keys = self._groups.get(key.group_id, {})
        producers = keys.pop(key, set())
        if not keys:
            self._groups.pop(key.group_id, None)
        return producers
