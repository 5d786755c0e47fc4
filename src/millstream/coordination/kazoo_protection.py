"""Access lists for nodes that exist: those of a cluster from before its brokers had the secret.

The keeper does this itself at a start; ZooKeeper keeps nodes open until a client that may says
otherwise. The list of the cluster's root is the mark that all nodes below have theirs. A broker
that runs with `zookeeper.set.acl=false` creates open nodes after that; it is known by a node of its
own that it creates at every start, and looks at all nodes again when it may set lists.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl

from millstream.coordination.errors import NoNode, NotAllowed
from millstream.coordination.paths import ROOT
from millstream.coordination.port import NodeChildren
from millstream.observe.logs import get_logger

NODES_AT_ONCE: Final = 200
"""Requests under way: enough to keep the service busy, few enough for its limits."""

_ZOOKEEPERS_OWN: Final = "zookeeper"

log = get_logger("millstream.coordination.kazoo_protection")


class Tree(NamedTuple):
    """Which nodes are the cluster's."""

    tops: tuple[str, ...]
    """Nodes below the root of the connection string; with them goes all that is below them."""
    mark: str
    """A node that this broker creates at every start."""


class AclSession(Protocol):
    """A session that can read and set access lists."""

    async def children(self, path: str) -> NodeChildren: ...

    async def acl(self, path: str) -> list[ACL]: ...

    async def set_acl(self, path: str, acl: list[ACL]) -> None: ...


async def protect(session: AclSession, tree: Tree, acl: list[ACL], *, has_chroot: bool) -> None:
    """Give open nodes of the cluster this list; raises NotAllowed for one of another secret."""
    is_root_open = await _is_open(session, ROOT)
    if not is_root_open and not await _is_open(session, tree.mark):
        return
    count = 0
    paths = list(tree.tops)
    while paths:
        now, paths = paths[:NODES_AT_ONCE], paths[NODES_AT_ONCE:]
        for changed, below in await asyncio.gather(*(_protect(session, one, acl) for one in now)):
            count += changed
            paths += below
    if is_root_open:  # last: a start that is interrupted before is repeated by the next one
        await _protect_root(session, tree, acl, has_chroot=has_chroot)
    log.info("nodes of the coordination service are for this cluster only", changed=count)


async def _is_open(session: AclSession, path: str) -> bool:
    with suppress(NoNode, NotAllowed):
        return _has_open(await session.acl(path))
    return False


def _has_open(found: list[ACL]) -> bool:
    return bool(found == OPEN_ACL_UNSAFE)


async def _protect(session: AclSession, path: str, acl: list[ACL]) -> tuple[bool, Iterable[str]]:
    """Whether it was open, and the nodes below it."""
    is_open = False
    with suppress(NoNode):
        is_open = _has_open(await session.acl(path))
        if is_open:
            await session.set_acl(path, acl)
        return is_open, [f"{path}/{name}" for name in (await session.children(path)).names]
    return is_open, ()


async def _protect_root(
    session: AclSession, tree: Tree, acl: list[ACL], *, has_chroot: bool
) -> None:
    """The right to delete a node, and to create one in its place, is one on its parent."""
    names = {f"/{name}" for name in (await session.children(ROOT)).names}
    others = names - {*tree.tops, f"/{_ZOOKEEPERS_OWN}"}
    if others and not has_chroot:
        # The right to create stays: other programs use the ensemble.
        acl = [*acl, make_acl("world", "anyone", read=True, create=True)]
        log.warning(
            "other programs use the root of the coordination service: use a chroot path of your own"
            " in zookeeper.connect, or they can create nodes that are the cluster's",
            nodes=sorted(others)[:3],
        )
    await session.set_acl(ROOT, acl)
