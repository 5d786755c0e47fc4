"""Which twin is taken, and what is said about it."""

import os
import sys
from subprocess import CompletedProcess, run
from types import ModuleType

import pytest

from kits.kernels.kernel_twins import needs_compiled
from millstream.kernels import _select, batches, errors, keymap, records

KERNELS: list[ModuleType] = [batches, records, keymap]


def python(script: str, choice: str) -> CompletedProcess[str]:
    environment = os.environ | {"MILLSTREAM_KERNELS": choice}
    return run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )


@needs_compiled("batches", "records", "keymap")
@pytest.mark.parametrize(
    ("choice", "package"), [("", "_compiled"), ("compiled", "_compiled"), ("plain", "_plain")]
)
def test_environment_chooses(choice: str, package: str) -> None:
    script = (
        "from millstream.kernels import batches, records, keymap\n"
        "print(batches.walk.__module__, records.inspect.__module__, keymap.KeyMap.__module__)"
    )
    done = python(script, choice)
    names = ("batches", "records", "keymap")
    assert done.stdout.split() == [f"millstream.kernels.{package}.{name}" for name in names]
    assert done.stderr == ""


def test_unknown_choice_stops() -> None:
    done = python("import millstream.kernels.batches", "fast")
    assert done.returncode == 1
    assert "MILLSTREAM_KERNELS is 'fast'; it can be 'plain' or 'compiled'" in done.stderr


def test_fallback_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(_select.CHOICE_VARIABLE, raising=False)
    monkeypatch.setattr(_select, "_is_built", lambda _name: False)
    monkeypatch.setattr(_select, "_has_warned", False)
    assert _select.load("batches").__name__ == "millstream.kernels._plain.batches"
    assert _select.load("records").__name__ == "millstream.kernels._plain.records"
    assert capsys.readouterr().err.count("running in plain Python") == 1


def test_compiled_can_be_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_select.CHOICE_VARIABLE, "compiled")
    monkeypatch.setattr(_select, "_is_built", lambda _name: False)
    with pytest.raises(ImportError, match="'batches' was not built"):
        _select.load("batches")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_selector_offers_exactly_the_kernel(kernel: ModuleType) -> None:
    assert all(hasattr(kernel, name) for name in kernel.__all__)


def test_malformed_records_tells_reason_and_position() -> None:
    error = errors.MalformedRecords(errors.Reason.CRC, position=17, detail="was 5")
    assert (error.reason, error.position, str(error)) == (
        (errors.Reason.CRC, 17, "a batch with a wrong CRC at byte 17: was 5")
    )
    assert (
        str(errors.MalformedRecords(errors.Reason.SHORT)) == "a batch that ends too soon at byte 0"
    )
