"""Fetch sessions (KIP-227): what is remembered, what is sent, and which sessions are evicted."""

from typing import Any
from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane, Fetched
from millstream.broker.fetch import sessions as sessions_module
from millstream.broker.fetch.request import FetchParams
from millstream.broker.fetch.sessions import (
    EVICTION_MS,
    SESSION_EPOCH_MAX,
    FetchSessions,
    next_epoch,
)
from millstream.model.ids import Offset
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.config import LogConfig
from millstream.testing.sim.clock import ManualClock
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse

SESSION_VERSIONS = range(7, 19)


class Client:
    """One client's session: knows its id and epoch, and what to send next."""

    def __init__(self, plane: DataPlane, version: int = 17) -> None:
        self.plane, self.version = plane, version
        self.session_id = self.epoch = 0

    def fetch(self, *positions: tuple[str, int, int], **fields: Any) -> Fetched:
        fetched = self.plane.fetch(
            positions,
            version=self.version,
            session_id=self.session_id,
            session_epoch=self.epoch,
            **fields,
        )
        if fetched.error == 0:
            self.session_id = fetched.session_id
            self.epoch = next_epoch(self.epoch)
        return fetched


def plane_with(partitions: int = 3, **more: Any) -> DataPlane:
    plane = DataPlane(LogConfig(), **more)
    plane.create("t", partitions)
    return plane


def start(plane: DataPlane, version: int = 17, partitions: int = 3) -> Client:
    client = Client(plane, version)
    fetched = client.fetch(*(("t", index, 0) for index in range(partitions)))
    assert fetched.session_id > 0
    assert len(fetched.partitions) == partitions
    return client


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_an_incremental_fetch_brings_only_what_is_new(version: int) -> None:
    plane = plane_with()
    client = start(plane, version)
    assert client.fetch().partitions == {}
    plane.fill("t", b"a", index=1)
    fetched = client.fetch()
    assert list(fetched.partitions) == [("t", 1)]
    assert fetched.values("t", 1) == [b"a"]
    assert client.fetch(("t", 1, 1)).partitions == {}
    plane.fill("t", b"b", index=1)
    assert client.fetch().values("t", 1) == [b"b"]


def test_records_come_again_until_the_client_moves_on() -> None:
    """The session remembers what the client requested, not what was sent: that may be lost."""
    plane = plane_with()
    client = start(plane)
    plane.fill("t", b"a")
    assert client.fetch().values("t") == [b"a"]
    assert client.fetch().values("t") == [b"a"]
    assert client.fetch(("t", 0, 1)).partitions == {}


def test_a_new_log_start_is_news() -> None:
    plane = plane_with()
    plane.fill("t", b"a", b"b")
    client = Client(plane)
    client.fetch(("t", 0, 2))
    assert client.fetch().partitions == {}
    plane.leader("t").log.advance_log_start(Offset(1))
    assert client.fetch().only.log_start_offset == 1
    assert client.fetch().partitions == {}


def test_errors_are_told_every_time_and_their_end_too() -> None:
    plane = plane_with()
    client = Client(plane)
    assert client.fetch(("t", 0, 1)).errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert client.fetch().errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    plane.fill("t", b"a")
    fetched = client.fetch()
    assert (fetched.errors, fetched.only.high_watermark) == ([0], 1)
    assert client.fetch().partitions == {}


def test_partitions_are_added_and_forgotten() -> None:
    plane = plane_with()
    client = Client(plane)
    client.fetch(("t", 0, 0))
    assert list(client.fetch(("t", 2, 0)).partitions) == [("t", 2)]
    client.fetch(forgotten=[("t", 0), ("t", 1)])
    for index in range(3):
        plane.fill("t", b"a", index=index)
    assert list(client.fetch().partitions) == [("t", 2)]
    assert plane.sessions.partition_count == 1


def test_a_session_without_partitions_is_closed() -> None:
    plane = plane_with()
    client = Client(plane)
    client.fetch(("t", 0, 0))
    fetched = client.fetch(forgotten=[("t", 0)])
    assert (fetched.error, fetched.session_id) == (0, 0)
    assert len(plane.sessions) == 0
    assert plane.sessions.partition_count == 0


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_wrong_numbers_are_refused(version: int) -> None:
    plane = plane_with()
    client = start(plane, version)

    def begin(session_id: int, epoch: int) -> tuple[int, int]:
        fetched = plane.fetch([], version=version, session_id=session_id, session_epoch=epoch)
        assert fetched.partitions == {}
        return fetched.error, fetched.session_id

    unknown = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    assert begin(client.session_id + 1, 1) == unknown
    assert begin(0, 1) == unknown
    assert begin(0, -7) == unknown
    assert begin(client.session_id, 2) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    assert begin(client.session_id, -2) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    client.fetch()
    assert begin(client.session_id, 1) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    assert client.fetch().error == 0


def test_ids_and_names_do_not_mix_in_one_session() -> None:
    plane = plane_with()
    by_name, by_id = start(plane, 12), start(plane, 13)
    by_name.version, by_id.version = 13, 12
    assert by_name.fetch().error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert by_id.fetch().error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_full_fetch_closes_the_session_that_it_names() -> None:
    plane = plane_with()
    first = start(plane)
    old = first.session_id
    again = plane.fetch([("t", 0, 0)], session_id=old, session_epoch=0)
    assert again.session_id not in (0, old)
    assert len(plane.sessions) == 1
    assert first.fetch().error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    last = plane.fetch([("t", 0, 0)], session_id=again.session_id, session_epoch=-1)
    assert (last.session_id, len(last.partitions)) == (0, 1)
    assert len(plane.sessions) == 0


def test_versions_without_sessions_have_none() -> None:
    plane = plane_with()
    plane.fetch([("t", 0, 0)], version=6)
    plane.fetch([("t", 0, 0)], version=7)
    assert len(plane.sessions) == 0


def test_a_partition_named_twice_counts_once_with_the_last_position() -> None:
    plane = plane_with()
    plane.fill("t", b"a", b"b")
    client = Client(plane)
    fetched = client.fetch(("t", 0, 0), ("t", 1, 0), ("t", 0, 1))
    assert fetched.values("t") == [b"b"]
    assert plane.sessions.partition_count == 2


# -- fairness ------------------------------------------------------------------------------------


def test_partitions_that_gave_records_go_behind_the_others() -> None:
    """With a limit that one partition uses up, all of them have their turn."""
    plane = plane_with()
    client = start(plane)
    for index in range(3):
        plane.fill("t", b"x" * 100, b"y" * 100, index=index)
    first = [
        next(name for name, one in client.fetch(max_bytes=1).partitions.items() if one.records)
    ]
    for _ in range(2):
        fetched = client.fetch(max_bytes=1)
        first += [name for name, one in fetched.partitions.items() if one.records]
    assert first == [("t", 0), ("t", 1), ("t", 2)]


# -- topics that come and go ---------------------------------------------------------------------


def test_a_topic_made_anew_is_another_to_a_session_with_ids() -> None:
    plane = plane_with()
    client = Client(plane, 13)
    client.fetch(("t", 0, 0))
    plane.delete("t")
    assert client.fetch().errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    plane.create("t", number=99)
    assert client.fetch().errors == [ErrorCode.INCONSISTENT_TOPIC_ID]


def test_a_topic_made_anew_is_the_same_to_a_session_with_names() -> None:
    plane = plane_with()
    plane.fill("t", b"old")
    client = Client(plane, 12)
    client.fetch(("t", 0, 1))
    plane.delete("t")
    assert client.fetch().errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    plane.create("t", number=99)
    assert client.fetch().errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    plane.fill("t", b"new")
    assert client.fetch(("t", 0, 0)).values("t") == [b"new"]


def test_an_unknown_id_is_resolved_when_the_topic_comes() -> None:
    plane = plane_with()
    client = Client(plane, 13)
    request = plane.fetch_request([("t", 0, 0)], session_epoch=0)
    request.topics[0].topic_id = UUID(int=55)
    fetched = plane.fetched(plane.send(request, 13), 13)
    assert fetched.errors == [ErrorCode.UNKNOWN_TOPIC_ID]
    client.session_id, client.epoch = fetched.session_id, 1
    plane.create("late", number=55)
    assert client.fetch().errors == [0]


def test_a_failed_directory_is_told_although_nothing_else_is_new() -> None:
    plane = plane_with()
    client = start(plane)
    plane.leader("t").log.owner.failed(OSError(5, "gone"))
    assert set(client.fetch().errors) == {ErrorCode.KAFKA_STORAGE_ERROR}


def test_another_isolation_level_is_looked_at_anew() -> None:
    from kits.storage.log_stories import batch_of, of_producer

    plane = plane_with(1)
    client = Client(plane)
    plane.leader("t").append(
        batch_of(b"open", spec=of_producer(9, 0, txn=True)), acks=1, done=lambda _: None
    )
    assert client.fetch(("t", 0, 0), isolation_level=1).values("t") == []
    assert client.fetch(isolation_level=1).partitions == {}
    assert client.fetch(isolation_level=0).values("t") == [b"open"]


# -- waiting -------------------------------------------------------------------------------------


def test_an_incremental_fetch_waits_and_a_second_one_of_that_number_is_refused() -> None:
    """Another connection repeats the request while the first waits."""
    plane = plane_with()
    client = start(plane)
    facts: dict[str, Any] = {"session_id": client.session_id, "session_epoch": client.epoch}
    number = plane.send(plane.fetch_request([], max_wait_ms=500, **facts), 17)
    assert plane.answer(number, FetchResponse, 17) is None
    again = plane.fetch([], max_wait_ms=500, **facts)
    assert again.error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    plane.fill("t", b"a")
    plane.timers.fire()
    assert plane.fetched(number).values("t") == [b"a"]


def test_an_answer_that_comes_too_late_for_its_session_says_so() -> None:
    plane = plane_with()
    client = start(plane)
    facts: dict[str, Any] = {"session_id": client.session_id, "session_epoch": client.epoch}
    number = plane.send(plane.fetch_request([], max_wait_ms=500, **facts), 17)
    facts["session_epoch"] += 1
    plane.fetch([], **facts)
    plane.fill("t", b"a")
    plane.timers.fire()
    late = plane.fetched(number)
    assert late.error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert late.partitions == {}


def test_a_full_fetch_that_waits_gets_its_session_with_the_answer() -> None:
    plane = plane_with(1)
    number = plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500, session_epoch=0), 17)
    assert len(plane.sessions) == 0
    plane.fill("t", b"a")
    plane.timers.fire()
    fetched = plane.fetched(number)
    assert fetched.session_id > 0
    assert plane.fetch([], session_id=fetched.session_id, session_epoch=1).values("t") == [b"a"]


# -- the cache -----------------------------------------------------------------------------------


def params(
    partitions: int = 1, *, session_id: int = 0, epoch: int = 0, replica_id: int = -1
) -> FetchParams:
    named = [("t", index, -1, 0, -1, -1, 100) for index in range(partitions)]
    return FetchParams(12, replica_id, 0, 1, 100, 0, session_id, epoch, list(named), [], "")


class Cache:
    def __init__(
        self, slots_max: int, partitions_max: int = 1_000, partitions_each_max: int = 1_000
    ) -> None:
        self.clock = ManualClock()
        self.sessions = FetchSessions(
            slots_max=slots_max,
            clock=self.clock,
            randomness=SeededRandomness(3),
            partitions_max=partitions_max,
            partitions_each_max=partitions_each_max,
        )

    def open(self, partitions: int = 1, *, replica_id: int = -1) -> int:
        round_ = self.sessions.begin(params(partitions, replica_id=replica_id))
        return self.sessions.finish(round_, []).session_id

    def use(self, session_id: int, epoch: int) -> ErrorCode:
        return self.sessions.begin(params(0, session_id=session_id, epoch=epoch)).error


def test_no_room_means_no_session_and_nobody_young_gives_way() -> None:
    cache = Cache(2)
    first, second = cache.open(), cache.open(5)
    assert cache.open(100) == 0
    assert cache.use(first, 1) == cache.use(second, 1) == ErrorCode.NONE
    assert len(cache.sessions) == 2
    assert cache.sessions.partition_count == 6


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(0).open() == 0


def test_an_unused_session_gives_way_however_large() -> None:
    cache = Cache(2)
    stale = cache.open(100)
    cache.clock.advance(EVICTION_MS)
    used = cache.open()
    cache.clock.advance(1)
    assert cache.open() > 0
    assert cache.use(stale, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.use(used, 1) == ErrorCode.NONE
    assert cache.sessions.evictions == 1


def test_an_old_session_in_use_gives_way_to_a_larger_one() -> None:
    cache = Cache(2)
    small, large = cache.open(3), cache.open(9)
    cache.clock.advance(EVICTION_MS + 1)
    for session_id in (small, large):
        assert cache.use(session_id, 1) == ErrorCode.NONE
    assert cache.open(3) == 0, "not larger than any that could go"
    assert cache.open(4) > 0
    assert cache.use(small, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.use(large, 2) == ErrorCode.NONE


def test_a_follower_takes_the_place_of_a_consumer_and_not_the_other_way_round() -> None:
    cache = Cache(2)
    consumer = cache.open(50)
    follower = cache.open(1, replica_id=4)
    second = cache.open(1, replica_id=5)
    assert second > 0
    assert cache.use(consumer, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.open(50) == 0
    assert cache.open(50, replica_id=6) == 0, "young followers keep theirs"
    cache.clock.advance(EVICTION_MS + 1)
    for session_id in (follower, second):
        cache.use(session_id, 1)
    assert cache.open(50) == 0, "a follower's is worth more than any consumer's"
    assert cache.open(2, replica_id=6) > 0


def test_a_session_s_size_counts_as_it_is_now() -> None:
    cache = Cache(1)
    session_id = cache.open(1)
    cache.clock.advance(EVICTION_MS + 1)
    cache.sessions.begin(params(5, session_id=session_id, epoch=1))
    assert cache.open(5) == 0
    assert cache.open(6) > 0
    assert cache.sessions.partition_count == 6


def test_partitions_of_all_sessions_are_limited() -> None:
    cache = Cache(100, partitions_max=10)
    first = cache.open(6)
    assert cache.open(5) == 0, "nobody young gives way"
    second = cache.open(4)
    assert second > 0
    cache.clock.advance(EVICTION_MS + 1)
    assert cache.use(first, 1) == ErrorCode.NONE
    assert cache.open(3) > 0, "the one that is not used gives way"
    assert cache.use(second, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.sessions.partition_count == 9


def test_one_consumer_does_not_fill_the_cache_and_evicts_nobody_for_it() -> None:
    cache = Cache(100, partitions_max=10, partitions_each_max=5)
    stale = cache.open(1)
    cache.clock.advance(EVICTION_MS + 1)
    assert cache.open(6) == 0
    assert cache.use(stale, 1) == ErrorCode.NONE
    assert cache.open(6, replica_id=2) > 0, "a follower may"
    assert cache.open(11, replica_id=2) == 0


def test_a_session_that_grows_beyond_the_limit_is_gone_and_its_client_begins_again() -> None:
    cache = Cache(100, partitions_max=10)
    first, other = cache.open(1), cache.open(6)
    grown = cache.sessions.begin(params(5, session_id=first, epoch=1))
    assert grown.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.sessions.partition_count == 6
    cache.clock.advance(EVICTION_MS + 1)
    again = cache.open(1)
    assert cache.sessions.begin(params(5, session_id=again, epoch=1)).error == ErrorCode.NONE
    assert cache.use(other, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it was not used"
    assert cache.sessions.partition_count == 5


def test_partitions_that_do_not_exist_get_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "UNKNOWN_KEPT_MAX", 3)
    plane = plane_with(2)
    unknown = [("none", index, 0) for index in range(4)]
    fetched = Client(plane).fetch(("t", 0, 0), *unknown)
    assert fetched.session_id == 0
    assert len(fetched.partitions) == 5, "it is answered all the same"
    assert len(plane.sessions) == 0

    client = start(plane, partitions=2)
    gone = client.fetch(*unknown)
    assert gone.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plane.sessions.partition_count == len(plane.sessions) == 0


def test_a_few_that_do_not_exist_stay_in_their_session() -> None:
    plane = plane_with(1)
    client = Client(plane)
    assert client.fetch(("t", 0, 0), ("none", 0, 0), ("none", 1, 0)).session_id > 0
    assert client.fetch().error == ErrorCode.NONE


def test_epochs_count_up_and_begin_at_one_again() -> None:
    assert next_epoch(0) == 1
    assert next_epoch(SESSION_EPOCH_MAX) == 1
    assert next_epoch(-1) == -1


def test_session_ids_are_positive_and_different() -> None:
    cache = Cache(500)
    ids = {cache.open() for _ in range(500)}
    assert len(ids) == 500
    assert min(ids) > 0
    assert max(ids) < 2**31


def test_a_waiting_fetch_leaves_partitions_that_its_session_forgot_meanwhile() -> None:
    """Pipelined long polls, each forgetting what the one before waits on, must not pile up."""
    plane = plane_with()
    client = Client(plane, 12)
    client.fetch(("t", 0, 0), ("t", 1, 0))
    waiting = plane.fetch_request(
        [], session_id=client.session_id, session_epoch=1, max_wait_ms=500
    )
    first = plane.send(waiting, 12)
    assert plane.leader("t", 0).readers
    forgetting = plane.fetch_request(
        [],
        session_id=client.session_id,
        session_epoch=2,
        max_wait_ms=500,
        forgotten=[("t", 0)],
    )
    second = plane.send(forgetting, 12)
    plane.timers.pass_time(1000)
    assert plane.fetched(first, 12).errors == []
    assert plane.fetched(second, 12).errors == []
    assert not plane.leader("t", 0).readers
    assert not plane.leader("t", 1).readers


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "evicted"])
def test_a_session_that_ended_while_its_request_waited_ends_once(
    monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """I-37. Most of its partitions do not exist, so the end of the wait would end it, too."""
    monkeypatch.setattr(sessions_module, "UNKNOWN_KEPT_MAX", 3)
    plane = plane_with(1, slots_max=1)
    client = Client(plane, 12)
    client.fetch(("t", 0, 0), ("none", 0, 0), ("none", 1, 0))
    more = [("none", index, 0) for index in range(2, 4)]
    numbers: dict[str, Any] = {"session_id": client.session_id, "session_epoch": 1}
    waiting = plane.send(plane.fetch_request(more, max_wait_ms=500, **numbers), 12)
    if is_closed:
        plane.fetch([("t", 0, 0)], version=12, session_id=client.session_id, session_epoch=-1)
    else:
        plane.timers.pass_time(1)
        plane.clock.advance(EVICTION_MS)
        Client(plane, 12).fetch(("t", 0, 0))
    plane.timers.pass_time(501)
    assert plane.fetched(waiting, 12).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plane.sessions.partition_count == len(plane.sessions) == (0 if is_closed else 1)
