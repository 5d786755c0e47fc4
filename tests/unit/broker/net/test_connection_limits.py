"""The limits of connections, as the settings have them."""

from typing import Any, cast

import pytest

from millstream.broker.net.limits import ConfiguredLimits
from millstream.model.limits import MIB


class Settings:
    def __init__(self, **values: int) -> None:
        self._values = {name.replace("_", "."): value for name, value in values.items()}

    def get_int(self, name: str) -> int:
        return self._values[name]


def limits_of(budget_bytes: int, request_bytes_max: int) -> ConfiguredLimits:
    settings = Settings(
        queued_max_request_bytes=budget_bytes, socket_request_max_bytes=request_bytes_max
    )
    return ConfiguredLimits(cast(Any, settings), connections_max=100)


def test_the_budget_has_room_for_the_largest_request_and_says_so_when_it_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I-37: an administrator who sets a bound must know which one holds."""
    assert limits_of(64 * MIB, 47 * MIB).request_memory_bytes == 64 * MIB
    assert not caplog.records
    assert 130 * MIB < limits_of(64 * MIB, 100 * MIB).request_memory_bytes < 140 * MIB
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.message.startswith("queued.max.request.bytes is raised: ")


def test_a_budget_of_zero_or_less_is_none_as_in_kafka() -> None:
    for size in (0, -1, -2):
        assert limits_of(size, 100 * MIB).request_memory_bytes > 2**60
