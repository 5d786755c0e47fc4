"""What `up` writes about replicas follows the number of brokers, unless somebody changed it."""

from pathlib import Path

import pytest

from millstream.cli.brokers_on_disk import BrokerDirectory
from millstream.cli.replica_defaults import disagreements, grown, mark, replica_defaults
from millstream.model.config.properties import parse_properties, render_properties

OF_ONE = render_properties({"listeners": "PLAINTEXT://:9092", **replica_defaults(1)})
FACTOR, IN_SYNC = "default.replication.factor", "min.insync.replicas"


@pytest.mark.parametrize(
    ("size", "factor", "in_sync"),
    [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")],
)
def test_a_file_has_what_fits_the_number_of_brokers(size: int, factor: str, in_sync: str) -> None:
    assert replica_defaults(size) == {
        FACTOR: factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        IN_SYNC: in_sync,
        "transaction.state.log.min.isr": in_sync,
    }


@pytest.mark.parametrize("first", ["", mark(1), f"# mine\n{mark(1)}"])
def test_unchanged_values_grow_with_the_cluster(first: str) -> None:
    """Also those of files that an earlier version wrote, which did not say for how many."""
    new = grown(first + OF_ONE + "log.roll.ms=5\n", 3)
    assert new is not None
    assert new.changes == replica_defaults(3)
    settings = parse_properties(new.text)
    assert settings == {
        "listeners": "PLAINTEXT://:9092",
        **replica_defaults(3),
        "log.roll.ms": "5",
    }
    assert new.text.count("Written by millstream up") == 1
    assert ("# mine\n" in new.text) == ("mine" in first)
    assert grown(new.text, 3) is None
    assert grown(new.text, 5) is None, "more brokers do not mean more copies"
    assert grown(new.text, 1) is None


def test_a_file_of_a_broker_alone_grows_too() -> None:
    text = render_properties(replica_defaults(None))
    new = grown(text, 2)
    assert new is not None
    assert parse_properties(new.text) == replica_defaults(2)


def test_what_somebody_changed_stays() -> None:
    for line in (f"{FACTOR}=2", f"{FACTOR} : 4"):
        text = mark(1) + OF_ONE.replace(f"{FACTOR}=1", line)
        new = grown(text, 3)
        assert new is not None
        assert FACTOR not in new.changes
        assert line in new.text
        assert new.changes[IN_SYNC] == "2"
    removed = grown(mark(1) + OF_ONE.replace(f"{IN_SYNC}=1\n", ""), 3)
    assert removed is not None
    assert IN_SYNC not in parse_properties(removed.text)


def test_a_file_of_an_earlier_version_with_a_changed_value_stays_as_it_is() -> None:
    """Nobody can say which of its values are still what `up` wrote."""
    assert grown(OF_ONE.replace(f"{FACTOR}=1", f"{FACTOR}=2"), 3) is None
    assert grown("listeners=PLAINTEXT://:9092\n", 3) is None


def test_brokers_that_disagree_are_named_with_their_values() -> None:
    files = {1: {FACTOR: "1"}, 2: {FACTOR: "3"}, 3: {FACTOR: "3", "num.partitions": "1"}}
    (line,) = disagreements(files, ())
    assert line.startswith(f"brokers disagree on {FACTOR}: 1 on broker 1, 3 on brokers 2,3; ")
    assert disagreements(files, {"MILLSTREAM_DEFAULT_REPLICATION_FACTOR"}) == []
    assert disagreements({1: {}, 2: {"num.partitions": "1", FACTOR: "1"}}, ()) == []


def test_a_start_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    first = BrokerDirectory(tmp_path, 1)
    first.prepare(host=None, port=0, cluster_size=1)
    before = first.settings_file.read_text()
    again = BrokerDirectory(tmp_path, 1)
    assert again.prepare(host=None, port=None, cluster_size=3) == replica_defaults(3)
    assert again.settings[FACTOR] == "3"
    again.undo()
    assert again.settings_file.read_text() == before
