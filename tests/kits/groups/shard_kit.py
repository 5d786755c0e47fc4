"""A shard with a log that is a list: what it is told is what a real shell would tell it.

The high watermark moves only when a test says so, the log can refuse, and a failover is a new shard
that reads a prefix of the log.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from kits.groups.shard_topics import FakeTopics
from millstream.groups.memory import GroupMemory
from millstream.groups.offsets.fetch_request import OffsetFetch
from millstream.groups.records.entries import Entry, Producer, TransactionEnd
from millstream.groups.shard import Shard
from millstream.model.errors import OperatingError
from millstream.model.ids import MemberId, Offset, ProducerId
from millstream.shards.effects import Caller, Outbox, Reply, Write
from millstream.testing.protocol_members.settings import MutableGroupSettings


class LogFull(OperatingError):
    """The log did not take it."""


class Logged(NamedTuple):
    """A record of the log."""

    what: Entry | TransactionEnd
    producer: Producer | None = None


class Shell:
    """What the broker does around a shard, without a broker."""

    def __init__(
        self,
        *,
        settings: MutableGroupSettings | None = None,
        topics: FakeTopics | None = None,
        log: list[Logged] | None = None,
        now_ms: int = 1_000,
        wall_ms: int = 1_700_000_000_000,
        tokens: int = 0,
        memory: GroupMemory | None = None,
    ) -> None:
        self.memory = memory or GroupMemory()
        self.settings = settings or MutableGroupSettings(initial_rebalance_delay_ms=0)
        self.topics = topics or FakeTopics()
        self.log: list[Logged] = list(log or ())
        self.high_watermark = len(self.log)
        self._ends = [len(self.log)]
        """Where batches end: a log is cut and replicated batch by batch."""
        self.now_ms, self.wall_ms = now_ms, wall_ms
        self.answers: dict[object, Any] = {}
        self.is_refusing = False
        self.is_holding = False
        """The high watermark stays where it is."""
        self._pending: list[tuple[int, Write]] = []
        self._tokens = tokens
        self.on_append: Callable[[Write], None] = lambda _write: None
        self.shard = self._load()

    def _load(self) -> Shard:
        self.outbox = Outbox()
        shard = Shard(
            0,
            settings=self.settings,
            outbox=self.outbox,
            new_member_id=self._new_member_id,
            topics=self.topics,
            memory=self.memory,
        )
        for offset, logged in enumerate(self.log):
            if isinstance(logged.what, TransactionEnd):
                assert logged.producer is not None
                shard.transaction_ended(
                    logged.producer.producer_id, Offset(offset), is_commit=logged.what.is_commit
                )
            else:
                shard.apply(logged.what, Offset(offset), logged.producer)
        shard.on_high_watermark(Offset(len(self.log)))
        shard.on_loaded(now_ms=self.now_ms, wall_ms=self.wall_ms)
        self.shard = shard
        self.drain()
        return shard

    def _new_member_id(self, prefix: str) -> MemberId:
        self._tokens += 1
        return MemberId(f"{prefix}-{self._tokens}")

    # -- calling -----------------------------------------------------------------------------

    def submit(self, method: str, request: Any, *, version: int = 100, **more: Any) -> object:
        """Call the shard; gives the token that `answers` has the answer of."""
        self._tokens += 1
        token = more.pop("token", f"token-{self._tokens}")
        caller = Caller(token, version, more.pop("client_id", "client"), "/127.0.0.1")
        if method == "offset_fetch":
            request = OffsetFetch(request, more.pop("is_stable"))
        decide = getattr(self.shard, method)
        decide(caller, request, now_ms=self.now_ms, wall_ms=self.wall_ms, **more)
        self.drain()
        return token

    def answer(self, method: str, request: Any, **more: Any) -> Any:
        """The answer, which must have come at once."""
        return self.answers.pop(self.submit(method, request, **more))

    # -- the shell's part --------------------------------------------------------------------

    def drain(self) -> None:
        """Take out and carry out what the shard has decided, and what follows from that."""
        while effects := self.outbox.take():
            for effect in effects:
                if isinstance(effect, Reply):
                    self._send(effect)
                elif self.is_refusing and effect.entries:
                    self._refuse(effect)
                else:
                    self._append(effect)
            if not self.is_holding:
                self._release(len(self.log))
        if not self.is_holding:
            self._release(len(self.log))
        if self.outbox._effects:
            self.drain()

    def _send(self, reply: Reply) -> None:
        assert reply.token not in self.answers, "answered twice"
        self.answers[reply.token] = reply.response

    def _refuse(self, write: Write) -> None:
        error = LogFull("the log is full")
        for reply in write.replies:
            self._send(Reply(reply.token, error))
        self.shard.on_refused(write, error, now_ms=self.now_ms)

    def _append(self, write: Write) -> None:
        self.on_append(write)
        self.log.extend(Logged(entry, write.producer) for entry in write.entries)
        self._ends.append(len(self.log))
        last = len(self.log) - 1
        self._pending.append((last, write))
        self.shard.on_appended(write, Offset(last), now_ms=self.now_ms, wall_ms=self.wall_ms)

    def advance(self, to: int | None = None) -> None:
        """The high watermark moves, to the end if nothing else is said."""
        self._release(len(self.log) if to is None else self._batch_end(to))
        self.drain()

    def _release(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.shard.on_high_watermark(Offset(high_watermark))
        while self._pending and self._pending[0][0] < high_watermark:
            _, write = self._pending.pop(0)
            for reply in write.replies:
                self._send(reply)
            self.shard.on_written(write, now_ms=self.now_ms)

    def _batch_end(self, offset: int) -> int:
        return max(one for one in (self.high_watermark, *self._ends) if one <= offset)

    def end_transaction(self, producer: Producer, *, is_commit: bool) -> None:
        """The marker is written."""
        self.log.append(Logged(TransactionEnd(is_commit), producer))
        self._ends.append(len(self.log))
        self.shard.transaction_ended(
            ProducerId(producer.producer_id), Offset(len(self.log) - 1), is_commit=is_commit
        )
        self.drain()

    def pass_time(self, ms: int) -> None:
        """Time passes, and timers ring when they are due."""
        end_ms, wall_end_ms = self.now_ms + ms, self.wall_ms + ms
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end_ms:
            passed = max(0, deadline - self.now_ms)
            self.now_ms, self.wall_ms = self.now_ms + passed, self.wall_ms + passed
            self.shard.tick(now_ms=self.now_ms, wall_ms=self.wall_ms)
            self.drain()
        self.now_ms, self.wall_ms = end_ms, wall_end_ms

    def expire(self) -> None:
        """All steps."""
        while self.shard.expire(now_ms=self.now_ms, wall_ms=self.wall_ms):
            self.drain()
        self.drain()

    def fail_over(self, *, keep: int | None = None) -> "Shell":
        """Another broker with the log up to `keep`, at least the high watermark."""
        assert keep is None or keep >= self.high_watermark
        keep = self.high_watermark if keep is None else self._batch_end(keep)
        return Shell(
            settings=self.settings,
            topics=self.topics,
            log=self.log[:keep],
            now_ms=self.now_ms,
            wall_ms=self.wall_ms,
            tokens=self._tokens,
        )
