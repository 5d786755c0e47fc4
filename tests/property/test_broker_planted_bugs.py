"""The simulation of a broker catches the bugs it is for: each is planted here and must be found.

A plant says what it must be caught as: a simulation that stumbles over something else on its way
would not find the bug itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from millstream.broker.fetch import read as fetch_read
from millstream.broker.fetch.delayed import DelayedFetch
from millstream.broker.fetch.request import FetchParams
from millstream.broker.fetch.sessions import FetchRound, FetchSessions
from millstream.broker.net import peer, transport_shell
from millstream.broker.net.peer import ClientPeer
from millstream.broker.net.server import Server
from millstream.controller.store import FileChanges, MetadataStore, Stored
from millstream.model.invariant import InvariantViolated
from millstream.replication.deadlines import Deadlines
from millstream.replication.partition import Partition
from millstream.storage.flush import Flushable, FlushDone, GroupCommit
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import LogManager
from millstream.storage.producers import producer_log
from millstream.storage.producers.machine import Origin, ProducerBatch, ProducerStates
from millstream.storage.segments.files import PooledFile
from millstream.testing.simulation.broker.simulation import simulate_broker
from millstream.testing.simulation.broker.watch import SimulationFailed

SEEDS = 60
STEPS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledges_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: LogManager, log: Flushable, done: FlushDone) -> None:
        done(None)

    patch.setattr(LogManager, "flush", at_once)


def duplicates_are_not_recognised(patch: pytest.MonkeyPatch) -> None:
    check = ProducerStates.check

    def blind(self: ProducerStates, batch: ProducerBatch, origin: Origin) -> None:
        check(self, batch, origin)

    patch.setattr(ProducerStates, "check", blind)


def forgets_all_but_the_last_batch_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producer_log, "recall", lambda segments, entry, *, log_start: False)


def producer_ids_are_given_again(patch: pytest.MonkeyPatch) -> None:
    load = MetadataStore.load

    def forgetful(self: MetadataStore, *, starts: int) -> Stored:
        stored = load(self, starts=starts)
        stored.next_producer_id = 0
        return stored

    patch.setattr(MetadataStore, "load", forgetful)


def readers_see_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetch_read, "_isolation", lambda params: Isolation.LOG_END)


def answers_leave_as_they_come(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: ClientPeer, number: int, parts: Sequence[Any]) -> None:
        self._queue.extend(parts)
        self.core.answer(number, [b""])
        self._exchange.on_output_ready(self)

    patch.setattr(ClientPeer, "send_answer", hasty)


def a_fetch_is_answered_twice(patch: pytest.MonkeyPatch) -> None:
    finish = DelayedFetch._finish

    def twice(self: DelayedFetch) -> None:
        finish(self)
        client: Any = self._context.peer
        if client.is_open:
            correlation_id = self._context.facts.correlation_id
            client._queue.append(b"\0\0\0\4" + correlation_id.to_bytes(4, "big"))

    patch.setattr(DelayedFetch, "_finish", twice)


def a_long_poll_has_no_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedFetch, "expire", lambda self: None)


def session_epochs_are_ignored(patch: pytest.MonkeyPatch) -> None:
    begin = FetchSessions._begin_incremental

    def tolerant(self: FetchSessions, params: FetchParams) -> FetchRound:
        session = self._sessions.get(params.session_id)
        if session is not None:
            session.epoch = params.session_epoch
        return begin(self, params)

    patch.setattr(FetchSessions, "_begin_incremental", tolerant)


def sessions_are_not_limited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchSessions, "_make_room", lambda self, size, **more: True)


def a_deleted_topic_is_forgotten_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    apply = MetadataStore.apply
    patch.setattr(
        MetadataStore, "apply", lambda self, changes: apply(self, replace(changes, rename=()))
    )


def metadata_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Names only in the page cache: a kill keeps them, a power loss may not."""
    apply = MetadataStore.apply

    def lazily(self: MetadataStore, changes: FileChanges) -> None:
        disk = self._disk
        self._disk = _Unsynced(disk)
        apply(self, changes)
        self._disk = disk

    patch.setattr(MetadataStore, "apply", lazily)


class _Unsynced:
    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_directory(self, path: str) -> None:
        """Not now."""

    def sync_many(self, files: Sequence[Any], directories: Sequence[str]) -> None:
        """Not now."""


def epochs_of_readers_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check_leader_epoch", lambda self, current: None)
    patch.setattr(fetch_read, "_divergence", lambda leader, cursor: None)


def files_are_never_unpinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PooledFile, "unpin", lambda self: None)


def files_of_unsent_answers_stay_pinned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peer, "release", lambda parts: None)


def files_of_answers_are_unpinned_twice(patch: pytest.MonkeyPatch) -> None:
    send_first = transport_shell.TransportPeer._send_first

    def again(self: transport_shell.TransportPeer) -> None:
        first = self._queue[0]
        send_first(self)
        file = getattr(first, "file", None)
        if file is not None and (not self._queue or self._queue[0] is not first):
            file.unpin()

    patch.setattr(transport_shell.TransportPeer, "_send_first", again)


def a_stop_leaves_its_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadlines, "close", lambda self: None)


def a_stop_leaves_connections(patch: pytest.MonkeyPatch) -> None:
    async def hurried(self: Server) -> None:
        self.stop_accepting()

    patch.setattr(Server, "close", hurried)


def flushes_go_on_when_the_background_is_closed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCommit, "stop", lambda self: None)


class Planted(NamedTuple):
    """A bug, and what one of the reports of it must say."""

    plant: Plant
    symptoms: str
    first_seed: int = 0
    """Nearer to where it is known to be caught, for bugs that take a rare chance to show."""


PLANTS = [
    Planted(acknowledges_before_the_flush, "lost-write|lost-read"),
    Planted(duplicates_are_not_recognised, "duplicate"),
    Planted(forgets_all_but_the_last_batch_at_a_restart, "I-20|duplicate", first_seed=38),
    Planted(producer_ids_are_given_again, "I-20"),
    Planted(readers_see_what_is_not_flushed, "I-07"),
    Planted(answers_leave_as_they_come, "I-36"),
    Planted(a_fetch_is_answered_twice, "I-36"),
    Planted(a_long_poll_has_no_end, "I-41|I-36|I-33"),
    Planted(session_epochs_are_ignored, "out of turn"),
    Planted(sessions_are_not_limited, "I-37"),
    Planted(a_deleted_topic_is_forgotten_in_memory_only, "deleted topic is back"),
    Planted(metadata_is_not_synced, "is gone|is back|a setting|is not there|did not start"),
    Planted(epochs_of_readers_are_not_checked, "poll-skip"),
    Planted(files_are_never_unpinned, "I-42"),
    Planted(files_of_unsent_answers_stay_pinned, "I-42"),
    Planted(files_of_answers_are_unpinned_twice, "I-37"),
    Planted(a_stop_leaves_its_timers, "I-42"),
    Planted(a_stop_leaves_connections, "I-42"),
    Planted(flushes_go_on_when_the_background_is_closed, "work after close", first_seed=38),
]


def first_failure(first_seed: int) -> tuple[int, str] | None:
    for seed in range(first_seed, first_seed + SEEDS):
        try:
            simulate_broker(seed, steps=STEPS)
        except (SimulationFailed, InvariantViolated) as error:
            return seed, str(error)
        except BaseExceptionGroup as error:
            return seed, " ".join(map(str, error.exceptions))
    return None


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTS, ids=lambda planted: planted.plant.__name__)
def test_planted_bug_is_caught(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    found = first_failure(planted.first_seed)
    assert found is not None, f"{SEEDS} seeds did not notice: {planted.plant.__name__}"
    seed, symptoms = found
    assert any(part in symptoms for part in planted.symptoms.split("|")), f"seed {seed}: {symptoms}"
