"""A first start where a disk should be and is not mounted; see also `test_log_directories.py`."""

from pathlib import Path

import pytest

from millstream.broker import process
from millstream.broker.cluster.first_start import NotMounted, check_first_start
from millstream.model.config.properties import render_properties
from millstream.runtime import mounts
from millstream.runtime.mounts import find_unmounted, unmounted_point
from millstream.testing.sim.disk import SimDisk

FSTAB = r"""
# device  point  type
UUID=1 / ext4 defaults 0 1
UUID=2 /disks/one ext4 defaults 0 2
UUID=3 /disks/two/ xfs noauto
UUID=4 /disks/with\040space ext4 defaults
#UUID=5 /disks/gone ext4 defaults
UUID=6 none swap sw
broken
"""
MOUNTED = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 254:1 / /disks/one rw,relatime shared:1 - ext4 /dev/vdb rw
24 22 254:2 / /disks/other\040place rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/disks/one", None),
        ("/disks/one/logs", None),
        ("/disks/two", "/disks/two"),
        ("/disks/two/a/b", "/disks/two"),
        ("/disks/twofold", None),
        ("/disks/with space/logs", "/disks/with space"),
        ("/disks/gone/logs", None),
        ("/somewhere", None),
        ("/", None),
    ],
)
def test_a_declared_mount_point_without_its_disk_is_found(path: str, point: str | None) -> None:
    assert find_unmounted(path, declared=FSTAB, present=MOUNTED) == point


def test_where_nobody_declares_anything_nothing_is_missing(tmp_path: Path) -> None:
    assert unmounted_point("/disks/two", fstab=tmp_path / "none") is None
    (tmp_path / "bytes").write_bytes(b"\xff\xfe /disks/two x")
    assert unmounted_point("/disks/two", fstab=tmp_path / "bytes") is None


def test_a_link_is_followed_to_where_the_disk_should_be(tmp_path: Path) -> None:
    (tmp_path / "point").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "point")
    (tmp_path / "fstab").write_text(f"x {tmp_path.resolve()}/point ext4\n")
    found = unmounted_point(str(tmp_path / "link" / "logs"), fstab=tmp_path / "fstab")
    assert found == f"{tmp_path.resolve()}/point"


def test_only_a_first_start_is_refused() -> None:
    disk = SimDisk(directories=["/one", "/two"])
    with pytest.raises(NotMounted, match="/two") as caught:
        check_first_start(disk, ["/one", "/two"], lambda path: path if path == "/two" else None)
    assert caught.value.point == "/two"
    disk.open_write("/one/meta.properties").close()
    check_first_start(disk, ["/one", "/two"], lambda path: path)


def test_the_process_ends_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "fstab").write_text(f"x {tmp_path.resolve()}/disk ext4\n")
    settings = {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "disk" / "logs"),
    }
    (tmp_path / "server.properties").write_text(render_properties(settings))

    def at(path: str) -> str | None:
        return unmounted_point(path, fstab=tmp_path / "fstab")

    monkeypatch.setattr(mounts, "unmounted_point", at)
    assert process.run(tmp_path / "server.properties") == process.EXIT_FAILED
    stderr = capfd.readouterr().err
    assert f"nothing is mounted on {tmp_path.resolve()}/disk" in stderr
    assert list((tmp_path / "disk").iterdir()) == []
