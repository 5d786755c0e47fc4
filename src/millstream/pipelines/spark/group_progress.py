"""A streaming query's progress as the offsets of a consumer group, for tools that show lag.

It is informational: the checkpoint decides where a query continues. So nothing waits for a commit
and a failed one does not fail the query. One commit is in flight at a time; progress made meanwhile
goes with the next. A failed commit is a warning, and the next one makes up for it.
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
"""After a failover it takes some time until a group has a coordinator again."""

DRAIN_TIMEOUT_S: Final = 5.0
"""How long the end of an AvailableNow query waits for its last commit."""

Positions = Mapping[TopicPartition, Offset]


class GroupProgress:
    """Commits the progress of one query, on its driver."""

    def __init__(self, client: Callable[[], BlockingClient], group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._running: Running | None = None
        self._under_way: Future[list[str]] | None = None
        self._sent: Positions = {}
        """The positions of the last commit."""
        self._wanted: Positions = {}

    def note(self, done: SourceOffset) -> list[str]:
        """Commit that the query has processed everything before; returns earlier problems.

        The start of a new query is not progress: the group keeps its offsets until a batch is done.
        """
        problems = self._ended()
        if not done.is_initial:
            self._wanted = done.positions
        if self._under_way is None and self._wanted != self._sent:
            self._commit()
        return problems

    def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> list[str]:
        """Wait for the last commit, at the end of the query; returns problems."""
        problems: list[str] = []
        while self._under_way is not None:
            with suppress(FutureTimeoutError, CancelledError):
                self._under_way.exception(timeout_s)
            if not self._under_way.done():
                return [*problems, self._text(f"not committed within {timeout_s:g} s")]
            problems += self._ended()
            if not problems and self._wanted != self._sent:
                self._commit()
        return problems

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
        """Problems of the commit that was under way, if it has ended."""
        if self._under_way is None or not self._under_way.done():
            return []
        ended, self._under_way = self._under_way, None
        try:
            reasons = ended.result()
        except (ClientError, CancelledError) as error:
            reasons = [str(error)]
        if reasons:
            self._sent = {}  # so that the next call retries
        return [self._text(one) for one in reasons]

    def _text(self, reason: str) -> str:
        return f"the query's progress was not committed to group {self._group_id!r}: {reason}"
