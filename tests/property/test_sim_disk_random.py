"""Random calls: the simulated disk answers as the real one, and never loses what was synced."""

import tempfile
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.runtime.disk import Disk, read_whole
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.crash_fates import keep_all, keep_none, random_fates
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk

NAMES = st.sampled_from(["a", "b", "one", "one/a", "one/b", "one/two"])
DATA = st.binary(min_size=1, max_size=24)
SPOT = st.integers(min_value=0, max_value=48)

CALLS = st.one_of(
    st.tuples(st.just("write"), NAMES, SPOT, DATA),
    st.tuples(st.just("truncate"), NAMES, SPOT),
    st.tuples(st.just("read"), NAMES, SPOT, SPOT),
    st.tuples(st.just("make"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("remove_directory"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("list"), NAMES),
    st.tuples(st.just("size"), NAMES),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("sync_directory"), st.sampled_from(["", "one"])),
)


def write(disk: Disk, path: str, position: int, data: bytes) -> None:
    with disk.open_write(path) as file:
        file.write_at(position, data)


def truncate(disk: Disk, path: str, size: int) -> None:
    with disk.open_write(path) as file:
        file.truncate(size)


def read(disk: Disk, path: str, position: int, size: int) -> bytes:
    with disk.open_read(path) as file:
        return file.read_at(position, size)


def sync(disk: Disk, path: str) -> None:
    with disk.open_read(path) as file:
        file.sync()


def call(disk: Disk, home: str, step: tuple[object, ...]) -> object:
    """What one step answers: a value or an errno."""
    kind, *arguments = step
    paths = [f"{home}/{name}" if isinstance(name, str) else name for name in arguments]
    calls: dict[object, Callable[..., object]] = {
        "write": lambda *told: write(disk, *told),
        "truncate": lambda *told: truncate(disk, *told),
        "read": lambda *told: read(disk, *told),
        "sync": lambda *told: sync(disk, *told),
        "make": disk.make_directories,
        "remove": disk.remove,
        "remove_directory": disk.remove_directory,
        "rename": disk.rename,
        "list": disk.list_directory,
        "size": lambda path: None if disk.is_directory(path) else disk.size(path),
        "sync_directory": disk.sync_directory,
    }
    try:
        return calls[kind](*paths)
    except OSError as error:
        return error.errno


def tree_of(disk: Disk, path: str) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in disk.list_directory(path):
        child = f"{path}/{name}"
        if disk.is_directory(child):
            found[child] = None
            found.update(tree_of(disk, child))
        else:
            found[child] = read_whole(disk, child)
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, max_size=30))
def test_simulated_and_real_disk_answer_alike(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        real, simulated = OsDisk(), SimDisk(directories=[home])
        for step in steps:
            assert call(simulated, home, step) == call(real, home, step), step
        assert tree_of(simulated, home) == tree_of(real, home)


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, max_size=30), st.integers(min_value=0, max_value=2**32))
def test_losing_nothing_is_the_live_state_and_a_full_sync_leaves_nothing_to_lose(
    steps: list[tuple[object, ...]], seed: int
) -> None:
    disk = SimDisk(directories=["/home"])
    for step in steps:
        call(disk, "/home", step)
    before = tree_of(disk, "/home")
    twin_model = disk.durability.copy()
    for path, content in before.items():
        if content is not None:
            sync(disk, path)
        else:
            disk.sync_directory(path)
    disk.sync_directory("/home")
    disk.crash()
    assert tree_of(disk.after_crash(keep_all), "/home") == before
    # A file moved out of a directory that is now gone can never be synced at its source.
    in_doubt = bool(disk.durability.pending())
    if not in_doubt:
        assert tree_of(disk.after_crash(keep_none), "/home") == before
        left = disk.after_crash(random_fates(SeededRandomness(seed)))
        assert tree_of(left, "/home") == before
    assert twin_model.version <= disk.durability.version


@settings(max_examples=60, deadline=None)
@given(st.lists(CALLS, max_size=20))
def test_every_state_is_readable_and_has_no_bytes_nobody_wrote(
    steps: list[tuple[object, ...]],
) -> None:
    disk = SimDisk(directories=["/home"])
    recording = disk.record()
    written = {0}
    for step in steps:
        call(disk, "/home", step)
        if step[0] == "write" and isinstance(step[3], bytes):
            written.update(step[3])
    for state in crash_states(recording, limit=60):
        for content in tree_of(state.disk, "/home").values():
            assert written.issuperset(content or b""), state.description
