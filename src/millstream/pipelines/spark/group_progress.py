"""A streaming query's progress as the offsets of a consumer group, for tools that show lag.

It is for the eyes only: where a query goes on is in its checkpoint. So nothing waits for it and
nothing fails with it. One commit is under way at a time; whatever came meanwhile goes with the
next. A commit that does not succeed is told, and made up for by the next one.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Final

from millstream.client.blocking import BlockingClient, Running
from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError
from millstream.client.group_offsets import commit_group_offsets
from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.source_offset import SourceOffset

COMMIT_TIMEOUT_S: Final = 30.0
"""After a failover it takes a moment until a group has a coordinator again."""

SETTLE_TIMEOUT_S: Final = 5.0
"""How long the end of an AvailableNow query waits for its last commit."""

Positions = Mapping[TopicPartition, Offset]


class GroupProgress:
    """Of one query, on its driver."""

    def __init__(self, client: Callable[[], BlockingClient], group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._running: Running | None = None
        self._under_way: Future[list[str]] | None = None
        self._sent: Positions = {}
        """What the last commit was about."""
        self._wanted: Positions = {}

    def note(self, done: SourceOffset) -> list[str]:
        """The query has dealt with everything before these; what went wrong with the last commit.

        The start of a new query is no progress: the group keeps what it has until a batch is done.
        """
        told = self._ended()
        if not done.is_initial:
            self._wanted = done.positions
        if self._under_way is None and self._wanted != self._sent:
            self._commit()
        return told

    def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> list[str]:
        """Wait for the last commit, since nobody will come back; what went wrong with it."""
        told: list[str] = []
        while self._under_way is not None:
            with suppress(FutureTimeoutError, CancelledError):
                self._under_way.exception(timeout_s)
            if not self._under_way.done():
                return [*told, self._text(f"not committed within {timeout_s:g} s")]
            told += self._ended()
            if not told and self._wanted != self._sent:
                self._commit()
        return told

    def _commit(self) -> None:
        if self._running is None:
            self._running = self._client().begin_read(self)
        self._sent = positions = self._wanted

        async def work(cluster: Cluster) -> list[str]:
            what = f"committing the progress to group {self._group_id!r}"
            outcomes = await commit_group_offsets(
                cluster,
                self._group_id,
                positions,
                deadline=cluster.deadline(what, COMMIT_TIMEOUT_S),
            )
            return list(dict.fromkeys(str(one) for one in outcomes.values() if one is not None))

        self._under_way = self._running.thread.start(work(self._running.cluster))

    def _ended(self) -> list[str]:
        """Take what the commit came to, if it is over."""
        if self._under_way is None or not self._under_way.done():
            return []
        ended, self._under_way = self._under_way, None
        try:
            reasons = ended.result()
        except (ClientError, CancelledError) as error:
            reasons = [str(error)]
        if reasons:
            self._sent = {}  # so that the next look tries again
        return [self._text(one) for one in reasons]

    def _text(self, reason: str) -> str:
        return f"the query's progress is not in group {self._group_id!r}: {reason}"
