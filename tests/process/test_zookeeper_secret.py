"""A cluster on a real ZooKeeper whose brokers are given the secret, one setting after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kits.coordination.coordination_kit import CREDENTIALS
from kits.process.server_process import server_process
from kits.process.up_kit import Cluster
from millstream.coordination.keeper.journal import SECRET_FILE
from millstream.model.config.properties import render_properties
from millstream.runtime.private_files import write_private
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.peers.zookeeper import zookeeper_servers

TOPIC = "kept"
CHROOT = "/mine"


class Machine(NamedTuple):
    """One broker's disk and ZooKeeper."""

    root: Path
    connect: str

    @contextmanager
    def broker(self, **settings: str) -> Iterator[Cluster]:
        given = {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.root / "data"),
            "zookeeper.connect": self.connect,
        }
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        config = self.root / "server.properties"
        config.write_text(render_properties(given))
        command = ["millstream.broker.process", "--config", str(config)]
        with server_process(command, self.root, good_ends=[0]) as (_, address):
            yield Cluster(self.root, address)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[str]:
    require_runtime("java")
    with zookeeper_servers(tmp_path) as servers:
        yield servers[0].address


@contextmanager
def kazoo(connect: str, *, has_secret: bool) -> Iterator[Any]:
    auth = {("digest", CREDENTIALS.packet())} if has_secret else None
    client = KazooClient(connect, timeout=6.0, auth_data=auth)
    client.start(20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def paths_of(client: Any, path: str = "/") -> list[str]:
    below = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    return [path, *(one for child in below for one in paths_of(client, child))]


def open_paths(connect: str) -> list[str]:
    """Nodes that others than the cluster may use; ZooKeeper's own do not count."""
    with kazoo(connect, has_secret=True) as client:
        return [
            path
            for path in paths_of(client)
            if not path.startswith("/zookeeper")
            and {one.id.scheme for one in client.get_acls(path)[0]} != {"digest"}
        ]


def create(cluster: Cluster, topic: str) -> None:
    wanted = NewTopic(topic, num_partitions=1, replication_factor=1)
    cluster.admin.create_topics([wanted])[topic].result(20)


def refused_changes(client: Any, root: str) -> list[Callable[[], object]]:
    return [
        lambda: client.delete(f"{root}/controller"),
        lambda: client.delete(f"{root}/controller_epoch"),
        lambda: client.create(f"{root}/controller", b"{}"),
        lambda: client.get(f"{root}/millstream/secrets/1"),
        lambda: client.set(f"{root}/brokers/ids/1", b"{}"),
        lambda: client.get_children(f"{root}/brokers/topics"),
    ]


@pytest.mark.parametrize("chroot", ["", CHROOT])
def test_a_cluster_with_open_nodes_is_protected_when_its_broker_has_the_secret(
    tmp_path: Path, zookeeper: str, chroot: str
) -> None:
    machine = Machine(tmp_path, zookeeper + chroot)
    secret = tmp_path / SECRET_FILE
    write_private(secret, CREDENTIALS.secret.reveal())
    with machine.broker() as cluster:
        create(cluster, TOPIC)
    assert len(open_paths(machine.connect)) > 10
    with machine.broker(zookeeper_secret_file=str(secret), zookeeper_set_acl="false"):
        assert "/millstream/secrets/1" in open_paths(machine.connect), "for brokers without it"
    with machine.broker(zookeeper_secret_file=str(secret)) as cluster:
        assert TOPIC in cluster.admin.list_topics(timeout=10).topics
        assert open_paths(machine.connect) == []
        with kazoo(zookeeper, has_secret=False) as guest:
            for change in refused_changes(guest, chroot):
                with pytest.raises(NoAuthError):
                    change()
        create(cluster, "another")
        assert open_paths(machine.connect) == []
