"""Open nodes of a cluster are given to its secret, those of other programs are not touched."""

import asyncio

import pytest
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl

from kits.coordination.coordination_kit import CREDENTIALS
from millstream.controller.cluster import nodes
from millstream.coordination.errors import ConnectionLost, NoNode, NotAllowed
from millstream.coordination.kazoo_client import Access
from millstream.coordination.kazoo_protection import Tree, protect
from millstream.coordination.keeper.state import Node
from millstream.coordination.port import NodeChildren

OURS = Access(CREDENTIALS).acl() or []
OPEN = list(OPEN_ACL_UNSAFE)
CUSTOM = [make_acl("ip", "192.0.2.7", read=True), *OURS]
TREE = Tree(("/brokers", "/controller"), "/brokers/mine")
STAT = Node(b"").stat()


class Service:
    """Nodes and their lists."""

    def __init__(self, acls: dict[str, list[ACL]]) -> None:
        self.acls = {"/": OPEN, "/zookeeper": OPEN, **acls}
        self.broken_at = ""
        self.read: list[str] = []

    async def children(self, path: str) -> NodeChildren:
        parent = "" if path == "/" else path
        below = [one for one in self.acls if one != "/" and one.rpartition("/")[0] == parent]
        return NodeChildren([one.rpartition("/")[2] for one in below], STAT)

    async def acl(self, path: str) -> list[ACL]:
        self.read.append(path)
        if path == self.broken_at:
            raise ConnectionLost
        if path not in self.acls:
            raise NoNode(path)
        return self.acls[path]

    async def set_acl(self, path: str, acl: list[ACL]) -> None:
        if self.acls[path] != OPEN:
            raise NotAllowed(path)
        self.acls[path] = acl

    def protect(self, *, has_chroot: bool = False) -> None:
        asyncio.run(protect(self, TREE, OURS, has_chroot=has_chroot))


def cluster(acl: list[ACL]) -> dict[str, list[ACL]]:
    paths = ("/brokers", "/brokers/ids", "/brokers/ids/1", "/brokers/mine", "/controller")
    return dict.fromkeys(paths, acl)


def test_open_nodes_and_their_root_are_given_to_the_secret() -> None:
    """The root, too: who may delete a node of ours is written in its parent."""
    service = Service(cluster(OPEN) | {"/brokers/custom": CUSTOM})
    service.protect()
    expected = cluster(OURS) | {"/": OURS, "/zookeeper": OPEN, "/brokers/custom": CUSTOM}
    assert service.acls == expected


def test_an_empty_service_is_protected_before_there_are_nodes() -> None:
    service = Service({})
    service.protect()
    assert service.acls == {"/": OURS, "/zookeeper": OPEN}


def test_other_programs_can_still_use_the_root_they_share() -> None:
    service = Service(cluster(OPEN) | {"/theirs": OPEN})
    service.protect()
    shared = [*OURS, make_acl("world", "anyone", read=True, create=True)]
    assert service.acls == cluster(OURS) | {"/": shared, "/zookeeper": OPEN, "/theirs": OPEN}


def test_a_chroot_is_the_clusters_own() -> None:
    service = Service(cluster(OPEN) | {"/theirs": OPEN})
    service.protect(has_chroot=True)
    assert service.acls["/"] == OURS


def test_a_protected_tree_costs_two_reads() -> None:
    service = Service(cluster(OURS) | {"/": OURS, "/controller": OPEN})
    service.protect()
    assert service.acls["/controller"] == OPEN, "opened on purpose, and left so"
    assert service.read == ["/", TREE.mark]


def test_a_broker_that_created_open_nodes_protects_them_when_it_may() -> None:
    """`zookeeper.set.acl` was false, while another broker had protected the root already."""
    service = Service(cluster(OURS) | {"/": OURS, "/brokers/mine": OPEN, "/brokers/new": OPEN})
    service.protect()
    assert service.acls == cluster(OURS) | {"/": OURS, "/zookeeper": OPEN, "/brokers/new": OURS}


def test_what_was_interrupted_is_repeated() -> None:
    service = Service(cluster(OPEN))
    service.broken_at = "/brokers/ids/1"
    with pytest.raises(ConnectionLost):
        service.protect()
    assert service.acls["/"] == OPEN
    service.broken_at = ""
    service.protect()
    assert service.acls == cluster(OURS) | {"/": OURS, "/zookeeper": OPEN}


def test_every_node_of_a_cluster_is_below_the_tops() -> None:
    known = [value for name, value in vars(nodes).items() if name.isupper()]
    paths = [one for one in known if isinstance(one, str) and one.startswith("/")]
    assert len(paths) > 5
    for path in (*paths, *nodes.PERSISTENT):
        assert f"/{path.split('/')[1]}" in nodes.TOPS
