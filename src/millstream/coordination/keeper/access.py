"""Access lists: who a client is, and what each node lets it do, as in ZooKeeper."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millstream.coordination.credentials import SCHEME as DIGEST
from millstream.coordination.credentials import USER
from millstream.coordination.keeper.changes import SetNodeAcl
from millstream.coordination.keeper.limits import ACL_ENTRIES_MAX, ACL_IDENTITY_CHARACTERS_MAX
from millstream.coordination.keeper.protocol import (
    OPEN_PERMISSIONS,
    Code,
    KeeperError,
    Permission,
)
from millstream.coordination.keeper.requests import Acl
from millstream.coordination.keeper.state import OPEN_ACL, Node, State
from millstream.coordination.paths import ROOT

_WORLD: Final = ("world", "anyone")
_AUTH: Final = "auth"
_HIDDEN: Final = "x"


class Identity(NamedTuple):
    """One that a client has proved."""

    scheme: str
    name: str


Identities = tuple[Identity, ...]
NO_IDENTITY: Final[Identities] = ()


def check_allowed(node: Node, identities: Identities, *permissions: Permission) -> None:
    """Raise KeeperError unless any of the permissions is given to any of the identities."""
    if not is_allowed(node, identities, *permissions):
        raise KeeperError(Code.NO_AUTH)


def is_allowed(node: Node, identities: Identities, *permissions: Permission) -> bool:
    wanted = sum(permissions)
    return any(
        entry.permissions & wanted and (entry[1:] == _WORLD or entry[1:] in identities)
        for entry in node.acl
    )


def checked_acl(acl: Sequence[Acl], identities: Identities) -> tuple[Acl, ...]:
    """The list to keep, with `auth` replaced by who the client is; raises KeeperError.

    Entries of schemes that are not enforced here are refused: keeping them would be a false
    promise.
    """
    if len(acl) > ACL_ENTRIES_MAX:
        raise KeeperError(Code.INVALID_ACL)
    found = dict.fromkeys(one for entry in acl for one in _expanded(entry, identities))
    if not 0 < len(found) <= ACL_ENTRIES_MAX:
        raise KeeperError(Code.INVALID_ACL)
    return tuple(found)


def _expanded(entry: Acl, identities: Identities) -> list[Acl]:
    if entry[1:] == _WORLD:
        return [entry]
    is_short = len(entry.identity) <= ACL_IDENTITY_CHARACTERS_MAX
    if entry.scheme == DIGEST and entry.identity.count(":") == 1 and is_short:
        return [entry]
    if entry.scheme == _AUTH and identities:
        return [Acl(entry.permissions, *one) for one in identities]
    raise KeeperError(Code.INVALID_ACL)


def shown_acl(node: Node, identities: Identities) -> tuple[Acl, ...]:
    """As GET_ACL answers: who may not change the list does not see the hashes in it."""
    if is_allowed(node, identities, Permission.ADMIN):
        return node.acl
    return tuple(
        one._replace(identity=f"{one.identity.partition(':')[0]}:{_HIDDEN}")
        if one.scheme == DIGEST
        else one
        for one in node.acl
    )


def cluster_acl(identity: Identity) -> tuple[Acl, ...]:
    """Everything for the brokers of the cluster, nothing for others."""
    return (Acl(OPEN_PERMISSIONS, *identity),)


def upgrades(state: State, identity: Identity) -> Iterator[SetNodeAcl]:
    """What a start changes: a tree from before there was a secret, or from before another one.

    The root is the mark of a tree that has been upgraded: nodes that a client later opens to
    everybody on purpose stay open.
    """
    is_open = state.nodes[ROOT].acl == OPEN_ACL
    cluster = cluster_acl(identity)
    for path, node in state.nodes.items():
        acl = tuple(dict.fromkeys(_renewed(one, identity) for one in node.acl))
        if is_open and acl == OPEN_ACL:
            acl = cluster
        if acl != node.acl:
            yield SetNodeAcl(path, acl)


def _renewed(entry: Acl, identity: Identity) -> Acl:
    is_cluster = entry.scheme == DIGEST and entry.identity.partition(":")[0] == USER
    return entry._replace(identity=identity.name) if is_cluster else entry
