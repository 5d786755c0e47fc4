"""Log directories by their ids: an absent one is noticed, an unneeded one forgotten."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from kits.controller.controller_kit import create, made, run
from millstream.controller.documents import KnownDirectory
from millstream.controller.errors import (
    DamagedMetadata,
    DuplicateDirectoryId,
    MetadataMissing,
)
from millstream.controller.standalone.controller import StandaloneController
from millstream.runtime.disk import remove_tree
from millstream.storage import names
from millstream.testing.sim.disk import SimDisk

A, B, C = "/a", "/b", "/c"
T0, T1 = "t-0", "t-1"


def put(disk: SimDisk, directory: str, *partitions: str) -> None:
    for one in partitions:
        disk.make_directories(f"{directory}/{one}")


def load(disk: SimDisk, directories: Sequence[str], *, seed: int = 9) -> StandaloneController:
    controller = made(disk, directories=directories, seed=seed)
    controller.load()
    return controller


def settled(disk: SimDisk, directories: Sequence[str], *, seed: int = 9) -> StandaloneController:
    """A whole start and end; what it decided can still be asked."""
    controller = load(disk, directories, seed=seed)
    controller.open()
    controller.close()
    return controller


def with_topic(*, directories: Sequence[str] = (A, B)) -> SimDisk:
    """Topic t of two partitions, one in each of the first two directories."""
    disk = SimDisk(directories=[A])
    controller = made(disk, directories=directories, seed=1)
    controller.start()
    run(lambda: create(controller, "t", partitions=2))
    controller.close()
    put(disk, A, T0)
    put(disk, B, T1)
    return disk


def known_files(disk: SimDisk) -> list[str]:
    return [one for one in disk.list_directory(f"{A}/metadata") if one.endswith(".directory")]


def unmount(disk: SimDisk, directory: str) -> None:
    disk.rename(directory, f"{directory}.unmounted")


def mount(disk: SimDisk, directory: str, at: str | None = None) -> None:
    at = at or directory
    if disk.exists(at):
        remove_tree(disk, at)
    disk.rename(f"{directory}.unmounted", at)


@pytest.mark.parametrize("is_there", [False, True], ids=["no path", "empty mount point"])
@pytest.mark.parametrize("is_configured", [False, True], ids=["not in log.dirs", "in log.dirs"])
def test_an_absent_directory_is_withheld_and_never_touched(
    is_there: bool, is_configured: bool
) -> None:
    disk = with_topic()
    unmount(disk, B)
    if is_there:
        disk.make_directories(B)
    for _ in range(2):  # it does not wear off
        controller = settled(disk, [A, B] if is_configured else [A])
        (one,) = controller.directory_plan.withheld
        assert (one.name, one.path) == (B, B)
        assert "1 of them" in one.reason
        assert list(controller.directory_ids) == [A]
        assert not disk.exists(B) or disk.list_directory(B) == []
    mount(disk, B)
    back = settled(disk, [A, B])
    assert not back.directory_plan.withheld
    assert list(back.directory_ids) == [A, B]


def test_removing_its_file_gives_up_what_it_held() -> None:
    disk = with_topic()
    unmount(disk, B)
    (one,) = settled(disk, [A, B]).directory_plan.withheld
    (path,) = [f"{A}/metadata/{name}" for name in known_files(disk) if name in one.reason]
    disk.remove(path)
    controller = settled(disk, [A, B])
    assert not controller.directory_plan.withheld
    assert list(controller.directory_ids) == [A, B], "the path is used as a new directory"


def test_a_directory_that_nothing_is_missing_from_is_forgotten() -> None:
    disk = with_topic(directories=[A, B, C])
    assert len(known_files(disk)) == 3
    remove_tree(disk, C)
    plan = settled(disk, [A, B]).directory_plan
    assert [one.path for one in plan.forgotten] == [C]
    assert not plan.withheld
    assert len(known_files(disk)) == 2
    assert not settled(disk, [A, B]).directory_plan.forgotten


def test_a_directory_whose_topics_were_deleted_is_forgotten() -> None:
    disk = with_topic()
    unmount(disk, B)
    controller = load(disk, [A])
    controller.open()
    run(lambda: controller.delete_topics(["t"]))
    controller.close()
    assert [one.path for one in settled(disk, [A]).directory_plan.forgotten] == [B]


def test_a_new_directory_is_taken_in_also_while_another_is_absent() -> None:
    disk = with_topic()
    unmount(disk, B)
    controller = settled(disk, [A, B, C])
    assert [one.name for one in controller.directory_plan.withheld] == [B]
    assert list(controller.directory_ids) == [A, C]


def test_directories_are_known_by_their_ids_and_not_by_their_paths() -> None:
    disk = with_topic(directories=[A, B, C])
    put(disk, C, "other-0")
    unmount(disk, B)
    unmount(disk, C)
    mount(disk, B, at=C)
    mount(disk, C, at=B)
    plan = settled(disk, [A, C, B]).directory_plan
    assert not plan.withheld
    assert not plan.forgotten
    unmount(disk, C)
    (one,) = settled(disk, [A, B]).directory_plan.withheld
    assert one.path == C, "where it was last, not where it was first"


def test_another_directory_at_its_path_does_not_stand_for_it() -> None:
    disk = with_topic(directories=[A, B, C])
    unmount(disk, B)
    unmount(disk, C)
    mount(disk, C, at=B)
    controller = settled(disk, [A, B])
    (one,) = controller.directory_plan.withheld
    assert one.path == B
    assert one.name.startswith(f"{B} ("), "the path is another's now"
    assert list(controller.directory_ids) == [A, B]


@pytest.mark.parametrize("mark", names.MOVE_MARKS)
def test_a_copy_of_an_interrupted_move_does_not_stand_for_the_partition(mark: str) -> None:
    """It may be the one that does not count, and an empty directory must not decide that."""
    disk = with_topic()
    remove_tree(disk, f"{B}/{T1}")
    put(disk, A, T1)
    disk.open_write(f"{A}/{T1}/{mark}").close()
    unmount(disk, B)
    (one,) = settled(disk, [A, B]).directory_plan.withheld
    assert one.name == B


def test_a_directory_that_cannot_be_read_is_not_absent() -> None:
    disk = with_topic()
    disk.faults.fail_directory(B)
    plan = settled(disk, [A, B]).directory_plan
    assert not plan.withheld
    assert not plan.forgotten
    disk.faults.heal()
    assert len(known_files(disk)) == 2


def test_two_directories_with_one_id_are_refused() -> None:
    disk = with_topic()
    disk.make_directories(C)
    with disk.open_read(f"{B}/meta.properties") as file:
        content = file.read_at(0, 1000)
    with disk.open_write(f"{C}/meta.properties") as file:
        file.write_at(0, content)
    with pytest.raises(DuplicateDirectoryId, match=r"/b and /c"):
        load(disk, [A, B, C])


# -- the directory with the metadata -----------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, True], ids=["no path", "empty mount point"])
def test_without_its_metadata_a_broker_does_not_begin_anew(is_there: bool) -> None:
    disk = with_topic()
    unmount(disk, A)
    if is_there:
        disk.make_directories(A)
    with pytest.raises(MetadataMissing, match=r"/a with id"):
        load(disk, [A, B])
    assert not disk.exists(A) or disk.list_directory(A) == []
    assert not disk.exists(f"{B}/metadata")
    mount(disk, A)
    assert "t" in settled(disk, [B, A]).image.topics


def test_a_broker_begins_anew_when_it_is_told_to() -> None:
    disk = with_topic()
    unmount(disk, A)
    disk.remove(f"{B}/metadata.home")
    assert not settled(disk, [B]).image.topics


def test_a_damaged_mark_stops_the_start_too() -> None:
    disk = with_topic()
    unmount(disk, A)
    with disk.open_write(f"{B}/metadata.home") as file:
        file.truncate(3)
    with pytest.raises(MetadataMissing, match="is not known"):
        load(disk, [B])


def test_metadata_may_be_moved_to_another_directory() -> None:
    disk = with_topic()
    disk.rename(f"{A}/metadata", f"{B}/metadata")
    settled(disk, [A, B])
    assert disk.exists(f"{A}/metadata.home")
    assert not disk.exists(f"{B}/metadata.home")


def test_the_directory_of_the_metadata_keeps_its_id_without_its_file() -> None:
    disk = with_topic()
    first = settled(disk, [A, B]).directory_ids[A]
    disk.remove(f"{A}/meta.properties")
    remove_tree(disk, f"{A}/{T0}")
    controller = settled(disk, [A, B])
    assert not controller.directory_plan.withheld
    assert controller.directory_ids[A] == first


# -- their files -------------------------------------------------------------------------------


def test_nothing_is_written_where_nothing_changed() -> None:
    disk = with_topic()
    kept = known_files(disk)
    disk.faults.fail_next("write", path_part=".directory")
    disk.faults.fail_next("write", path_part="metadata.home")
    settled(disk, [A, B])
    assert known_files(disk) == kept


def test_a_damaged_file_of_a_directory_stops_the_start() -> None:
    disk = with_topic()
    with disk.open_write(f"{A}/metadata/{known_files(disk)[0]}") as file:
        file.truncate(5)
    with pytest.raises(DamagedMetadata, match=r"\.directory"):
        load(disk, [A, B])


def test_a_file_under_the_name_of_another_directory_stops_the_start() -> None:
    disk = with_topic()
    first, second = known_files(disk)
    disk.rename(f"{A}/metadata/{first}", f"{A}/metadata/{second}")
    with pytest.raises(DamagedMetadata, match="it describes"):
        load(disk, [A, B])


def test_what_is_known_of_a_directory_is_a_value() -> None:
    one = UUID(int=1000)
    assert KnownDirectory(one, A) == KnownDirectory(one, A) != KnownDirectory(one, B)
