"""The cluster's secret with real processes: intruders, brokers without it, older directories."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from kits.process.keeper_process import keeper_process
from kits.process.up_kit import cluster_up
from kits.process.waiting_for import until
from millstream.coordination.keeper.journal import SECRET_FILE, Journal
from millstream.coordination.keeper.limits import (
    REFUSED_REQUESTS_MAX,
    UNAUTHENTICATED_PER_ADDRESS_MAX,
)
from millstream.coordination.keeper.snapshots import encode_snapshot
from millstream.coordination.keeper.state import OPEN_ACL
from millstream.model.config.properties import parse_properties, render_properties
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import system_randomness

TOPIC = "kept"
REFUSED_S = 30
REFUSED_PATHS = (REFUSED_REQUESTS_MAX - 10) // 4
"""An intruder that goes on is disconnected."""


def keeper_of(data: Path) -> str:
    return parse_properties((data / "broker-1" / "server.properties").read_text())[
        "zookeeper.connect"
    ]


def client_of(address: str, secret: str | None) -> Any:
    auth = None if secret is None else {("digest", f"millstream:{secret}")}
    return KazooClient(address, timeout=6.0, auth_data=auth)


def kazoo(address: str, secret: str | None = None) -> Any:
    client = client_of(address, secret)
    client.start(10)
    return client


def read_after_start(client: Any, path: str) -> bytes:
    client.start(10)
    data: bytes = client.get(path)[0]
    return data


def tree_of(client: Any, path: str = "/") -> dict[str, bytes]:
    data, _ = client.get(path)
    found = {path: data}
    for name in client.get_children(path):
        found |= tree_of(client, f"{path.rstrip('/')}/{name}")
    return found


def test_an_intruder_reads_changes_and_deletes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cluster_up(data, "--brokers", "1", "--port", "0") as (_, cluster):
        secret_file = data / "keeper" / SECRET_FILE
        assert secret_file.stat().st_mode & 0o777 == 0o600
        address, secret = keeper_of(data), secret_file.read_text().strip()
        member, intruder = kazoo(address, secret), kazoo(address)
        before = tree_of(member)
        assert "/millstream/secrets/1" in before
        for path in sorted(before)[:REFUSED_PATHS]:
            for call in (intruder.get, intruder.get_children, intruder.exists, intruder.get_acls):
                with pytest.raises(NoAuthError):
                    call(path)
        for change in (
            lambda: intruder.delete("/controller"),
            lambda: intruder.set("/controller_epoch", b"99"),
            lambda: intruder.create("/brokers/ids/7", b"{}"),
            lambda: _delete_in_a_multi(intruder),
        ):
            with pytest.raises(NoAuthError):
                change()
        assert tree_of(member) == before
        guesser = client_of(address, secret[::-1])
        with pytest.raises((KazooException, KazooTimeoutError)):  # whichever of both notices it
            read_after_start(guesser, "/controller")
        for client in (member, intruder, guesser):
            client.stop()
            client.close()
        lines = (tmp_path / "stderr").read_text().splitlines()
        refused = [json.loads(one)["message"] for one in lines if '"client refused: ' in one]
        assert refused == [
            "client refused: a request without the cluster's secret",
            "client refused: a wrong secret",
        ], "one line of each kind"
        assert cluster.admin.list_topics(timeout=10).brokers


def _delete_in_a_multi(client: Any) -> None:
    transaction = client.transaction()
    transaction.delete("/cluster/id")
    transaction.commit()


def test_idle_connections_do_not_keep_a_broker_out(tmp_path: Path) -> None:
    """More than may wait without the secret, from the address of the broker itself."""
    with keeper_process(tmp_path) as keeper:
        place = ("127.0.0.1", keeper.port)
        held = [
            socket.create_connection(place, 5) for _ in range(UNAUTHENTICATED_PER_ADDRESS_MAX + 50)
        ]
        try:
            secret = Path(keeper.settings["zookeeper.secret.file"]).read_text().strip()
            member = kazoo(keeper.address, secret)
            member.create("/reached")
            lines = (tmp_path / "stderr").read_text().splitlines()
            refused = [one for one in lines if "too many connections without" in one]
            assert len(refused) == 1, "one line, not one for each"
            member.stop()
            member.close()
        finally:
            for one in held:
                one.close()


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        ("another-secret-of-some-length", "the coordination service refuses this broker"),
        (None, "the coordination service refuses this broker"),
        ("short", "must be one word of 16 to 1024 printable ASCII characters"),
        ("", "must be one word of 16 to 1024 printable ASCII characters"),
        ("missing", "No such file or directory"),
    ],
)
def test_a_broker_without_the_secret_says_so_in_one_line(
    tmp_path: Path, secret: str | None, reason: str
) -> None:
    with keeper_process(tmp_path / "keeper") as keeper:
        settings = {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "data"),
            "zookeeper.connect": keeper.address,
        }
        if secret is not None:
            settings["zookeeper.secret.file"] = str(tmp_path / "secret")
            if secret != "missing":
                (tmp_path / "secret").write_text(secret)
                (tmp_path / "secret").chmod(0o600)
        config = tmp_path / "server.properties"
        config.write_text(render_properties(settings))
        done = subprocess.run(
            [sys.executable, "-m", "millstream", "broker", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=REFUSED_S,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    (said,) = [one for one in done.stderr.splitlines() if one.startswith("millstream: ")]
    assert "zookeeper.secret.file" in said
    assert reason in said
    assert done.stdout == ""


def as_before_there_was_a_secret(data: Path) -> None:
    """What an earlier version has left: no secret, and every node open to everybody."""
    directory = data / "keeper"
    journal = Journal(OsDisk(), str(directory))
    state = journal.open(system_randomness()).state
    journal.close()
    for node in state.nodes.values():
        node.acl = OPEN_ACL
    for old in (*directory.glob("log.*"), *directory.glob("snapshot.*"), directory / SECRET_FILE):
        old.unlink()
    (directory / f"snapshot.{state.last_zxid:016x}").write_bytes(encode_snapshot(state))
    for file in data.glob("broker-*/server.properties"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(one for one in lines if "zookeeper.secret.file" not in one))


def test_a_directory_from_before_there_was_a_secret_is_upgraded(tmp_path: Path) -> None:
    """And grown: the broker that is added gets the secret, too."""
    data = tmp_path / "data"
    with cluster_up(data, "--brokers", "2", "--port", "0") as (_, cluster):
        cluster.admin.list_topics(timeout=10)
        members = len(cluster.admin.list_topics(timeout=10).brokers)
    assert members == 2
    as_before_there_was_a_secret(data)
    with cluster_up(data, "--brokers", "3") as (_, cluster):
        until(
            lambda: len(cluster.admin.list_topics(timeout=10).brokers) == 3,
            "all are there",
            timeout_s=30,
        )
        cluster.create(TOPIC)
        secret = (data / "keeper" / SECRET_FILE).read_text().strip()
        member = kazoo(keeper_of(data), secret)
        for path in tree_of(member):
            acls, _ = member.get_acls(path)
            assert [one.id.scheme for one in acls] == ["digest"], path
        member.stop()
        member.close()
