"""The explorer finds the crash states that break a careless writer, and none for a careful one."""

from collections import Counter
from collections.abc import Callable

import pytest

from millstream.runtime.disk import read_whole, write_atomically
from millstream.testing.sim.crash_states import CrashState, crash_states
from millstream.testing.sim.disk import SimDisk

Writer = Callable[[SimDisk, bytes], None]


def careful(disk: SimDisk, data: bytes) -> None:
    write_atomically(disk, "/d/a", data)


def without_file_sync(disk: SimDisk, data: bytes) -> None:
    with disk.open_write("/d/a.tmp") as file:
        file.truncate(0)
        file.write_at(0, data)
    disk.rename("/d/a.tmp", "/d/a")
    disk.sync_directory("/d")


def without_directory_sync(disk: SimDisk, data: bytes) -> None:
    with disk.open_write("/d/a.tmp") as file:
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
    disk.rename("/d/a.tmp", "/d/a")


def in_place(disk: SimDisk, data: bytes) -> None:
    with disk.open_write("/d/a") as file:
        file.write_at(0, data)
        file.sync()


def first_failure(writer: Writer, limit: int = 500) -> CrashState | None:
    """Three versions of one file; what a crash leaves must be whole and at least as new as the
    last one that the writer had finished.
    """
    versions = [bytes([65 + number]) * 700 for number in range(3)]
    disk = SimDisk(directories=["/d"])
    careful(disk, versions[0])
    recording = disk.record()
    disk.mark(0)
    for number, version in enumerate(versions[1:], start=1):
        writer(disk, version)
        disk.mark(number)
    for state in crash_states(recording, limit=limit, seed=1):
        promised = state.synced_mark
        assert isinstance(promised, int) or promised is None
        found = read_whole(state.disk, "/d/a") if state.disk.exists("/d/a") else b""
        if found not in versions[promised or 0 :]:
            return state
    return None


def test_a_careful_writer_survives_every_state() -> None:
    assert first_failure(careful) is None


@pytest.mark.parametrize("writer", [without_file_sync, without_directory_sync, in_place])
def test_each_careless_writer_is_caught(writer: Writer) -> None:
    state = first_failure(writer)
    assert state is not None
    assert state.description.startswith(f"after step {state.crash_point} of ")


def three_appends(sync_each: bool = False) -> SimDisk:
    disk = SimDisk(directories=["/d"])
    disk.record()
    file = disk.open_write("/d/log")
    disk.sync_directory("/d")
    for number in range(3):
        file.write_at(number * 600, bytes([65 + number]) * 600)
        if sync_each:
            file.sync()
            disk.mark((number + 1) * 600)
    return disk


def contents(states: list[CrashState]) -> set[bytes]:
    return {read_whole(state.disk, "/d/log") for state in states if state.disk.exists("/d/log")}


def test_systematic_states_have_each_write_lost_torn_and_kept() -> None:
    disk = three_appends()
    assert disk.storage.recording is not None
    states = list(crash_states(disk.storage.recording, limit=400))
    found = contents(states)
    one, two, three = (bytes([65 + number]) * 600 for number in range(3))
    for expected in (
        b"",
        one,
        one + two,
        one + two + three,
        bytes(600) + two + three,
        one + bytes(600) + three,
        one + two + bytes(600),
        one + two[:300],
        one + two[:300] + bytes(300),
    ):
        assert expected in found, expected
    descriptions = {state.description.partition(": ")[2] for state in states}
    for position in (0, 600, 1200):
        assert f"write /d/log@{position}+600 lost" in descriptions
        assert f"only write /d/log@{position}+600 kept" in descriptions
    assert (
        "content of /d/log lost" not in descriptions
    )  # nothing else is pending: it is "nothing kept"


def test_marks_tell_what_was_promised_and_synced_bytes_are_in_every_later_state() -> None:
    disk = three_appends(sync_each=True)
    assert disk.storage.recording is not None
    promised_counts: Counter[int] = Counter()
    for state in crash_states(disk.storage.recording, limit=300):
        promised = state.synced_mark or 0
        assert isinstance(promised, int)
        promised_counts[promised] += 1
        if promised:
            assert len(read_whole(state.disk, "/d/log")) >= promised, state.description
    assert set(promised_counts) == {0, 600, 1200, 1800}


def test_what_is_promised_too_early_is_tried_without_its_bytes() -> None:
    disk = SimDisk(directories=["/d"])
    recording = disk.record()
    with disk.open_write("/d/log") as file:
        for number in range(3):
            file.write_at(number, b"x")
            disk.mark(number)
    bare = [
        state.synced_mark
        for state in crash_states(recording, limit=200)
        if state.description.endswith("nothing unsynced kept")
    ]
    assert bare == [None, 0, 1, 2]


def test_the_limit_is_kept_and_one_seed_gives_one_list() -> None:
    disk = three_appends()
    recording = disk.storage.recording
    assert recording is not None

    def listed(seed: int) -> list[str]:
        return [state.description for state in crash_states(recording, limit=60, seed=seed)]

    assert len(listed(1)) <= 60
    assert listed(1) == listed(1)
    assert listed(1) != listed(2)


def test_every_crash_point_is_visited() -> None:
    disk = three_appends(sync_each=True)
    assert disk.storage.recording is not None
    step_count = len(disk.storage.recording.steps)
    points = {state.crash_point for state in crash_states(disk.storage.recording, limit=500)}
    assert points == set(range(step_count + 1))


def test_states_are_independent_and_can_be_recorded_again() -> None:
    """Recovery writes too: a crash inside it is explored from the state it began with."""
    disk = three_appends()
    assert disk.storage.recording is not None
    states = list(crash_states(disk.storage.recording, limit=50))
    whole = [state for state in states if state.description.endswith("everything kept")][-1]
    second_recording = whole.disk.record()
    with whole.disk.open_write("/d/log") as file:
        file.truncate(0)
    again = list(crash_states(second_recording, limit=50))
    assert {len(content) for content in contents(again)} == {0, 1800}
    assert read_whole(states[-1].disk, "/d/log") is not None
