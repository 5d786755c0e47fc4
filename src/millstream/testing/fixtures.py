"""Fixtures for tests of projects that use Millstream: `from millstream.testing import broker`."""

from collections.abc import Iterator

import pytest

from millstream.testing.broker_thread import BrokerThread


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A real broker with its own port and an empty data directory; gone after the test."""
    with BrokerThread() as running:
        yield running
