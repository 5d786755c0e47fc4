"""The stub checker finds every kind of disagreement it exists for."""

from pathlib import Path

import pytest

from kits.kernels.kernel_twins import needs_compiled
from millstream.testing import stubs


@needs_compiled("batches", "records", "keymap")
def test_stubs_and_twins_agree() -> None:
    for name in ("batches", "records", "keymap"):
        assert list(stubs.check(stubs.KERNELS / f"{name}.pyi")) == []


@needs_compiled("batches", "records", "keymap")
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("batches", "HEADER_BYTES: Final = 61", "HEADER_BYTES: Final = 60", "HEADER_BYTES is 61"),
        ("batches", '    "walk",\n', "", "__all__ differs in walk"),
        ("batches", "*, check_crc: bool", "check_crc: bool", "walk takes"),
        ("batches", "base_offset: int, leader_epoch: int", "base_offset: int", "assign_offsets"),
        ("batches", "size_max: int\n", "size_max: int = 5\n", "walk takes"),
        ("batches", "timestamp_ms: int) -> None", "time_ms: int) -> None", "set_append_time takes"),
        ("batches", "def find_offset(", "def find_offsets(", "no function find_offsets"),
        ("keymap", "class KeyMap:", "class KeyMaps:", "no class KeyMaps"),
        ("keymap", "def capacity", "def capacities", "KeyMap.capacities is no property"),
        ("keymap", "def get(self, key: Buffer)", "def get(self, name: Buffer)", "KeyMap.get takes"),
    ],
)
def test_disagreement_is_told_for_both_twins(
    tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    path = tmp_path / f"{name}.pyi"
    text = (stubs.KERNELS / f"{name}.pyi").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    problems = list(stubs.check(path))
    for where in ("_plain", "_compiled"):
        assert any(line.startswith(f"{where}/{name}: ") and message in line for line in problems)


def test_annotations_are_the_plain_twins(tmp_path: Path) -> None:
    path = tmp_path / "records.pyi"
    text = (stubs.KERNELS / "records.pyi").read_text()
    path.write_text(text.replace("keep: Buffer) -> bytes", "keep: bytes) -> bytearray"))
    assert any("retain is annotated" in line for line in stubs.check(path))


def test_missing_twin(tmp_path: Path) -> None:
    path = tmp_path / "nothing.pyi"
    path.write_text("")
    assert list(stubs.check(path)) == ["nothing: has a stub and no plain twin"]


def test_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nothing.pyi").write_text("")
    monkeypatch.setattr(stubs, "KERNELS", tmp_path)
    assert stubs.main() == 1
    assert capsys.readouterr().out == "nothing: has a stub and no plain twin\n"
