"""The fuzz finds what it is for, repeats by seed, and passes on the parsers as they are."""

from collections import Counter
from types import ModuleType

import pytest

from kits.kernels.kernel_twins import needs_compiled, plain
from millstream.testing.fuzz import __main__ as fuzz
from millstream.testing.fuzz import targets
from millstream.wire.headers import RequestHeader
from millstream.wire.primitives import MalformedFrame

SEEDS = 150


def failure_of(first: int, seeds: int) -> str:
    return fuzz.run_seeds(first, seeds, float("inf"), Counter())[1]


def test_all_parsers_stand_some_seeds() -> None:
    counts: Counter[str] = Counter()
    following, failure = fuzz.run_seeds(0, SEEDS, float("inf"), counts)
    assert failure == ""
    assert following == SEEDS
    names = {name.partition(":")[0] for name in counts}
    assert {"request", "fetch", "connection", "batches", "keeper", "HTTP"} <= names
    assert counts["request: decoded"] > 0
    assert counts["connection: served"] > 0


def test_a_seed_gives_the_same_inputs_again() -> None:
    for seed in range(20):
        once = [(one.name, one.data) for one in targets.inputs_of(seed)]
        assert once == [(one.name, one.data) for one in targets.inputs_of(seed)]


@pytest.mark.parametrize(
    ("kernel", "function"),
    [("records", "inspect"), ("batches", "walk"), ("fetch", "parse")],
)
@needs_compiled("records", "batches", "fetch")
def test_twins_that_differ_are_found(
    kernel: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin: ModuleType = plain(kernel)
    wrong = ((7,), 0, 0) if kernel != "fetch" else None
    calls = getattr(twin, function)

    def differ(*arguments: object, **options: object) -> object:
        calls(*arguments, **options)
        if wrong is None:
            raise MalformedFrame("planted")
        return wrong

    monkeypatch.setattr(twin, function, differ)
    failure = failure_of(0, SEEDS)
    assert "FuzzFailed" in failure
    assert "replay python -m millstream.testing.fuzz --from " in failure


def test_an_error_that_no_parser_declares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> tuple[RequestHeader, int]:
        raise IndexError("planted")

    monkeypatch.setattr(targets, "decode_request_header", broken)
    assert "IndexError: planted" in failure_of(0, SEEDS)


def test_memory_beyond_the_size_of_the_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytearray] = []

    def greedy(data: bytes) -> str:
        kept[:] = [bytearray(fuzz.MEMORY_FIXED + fuzz.MEMORY_PER_BYTE * len(data) + 1)]
        return "decoded"

    monkeypatch.setattr(fuzz, "inputs_of", lambda _: [targets.Input("greedy", b"x", greedy)])
    assert "bytes of memory for 1" in failure_of(0, 1)


def test_the_command_says_where_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--from", "5", "--seeds", "2"]) == 0
    assert "seeds 5 to 6 passed; go on --from 7" in capsys.readouterr().out
