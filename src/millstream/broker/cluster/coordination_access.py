"""The coordination service of `zookeeper.connect`, and the secret by which a broker proves itself.

Loaded only where there is one: a standalone broker and the simulator need none of it.
"""

from pathlib import Path
from typing import Final

from millstream.broker.cluster.settings import SECRET_FILE, ClusterSettings
from millstream.controller.cluster import nodes
from millstream.coordination.credentials import BadSecretFile, read_credentials
from millstream.coordination.kazoo_client import Access
from millstream.coordination.kazoo_coordination import KazooCoordination
from millstream.coordination.kazoo_protection import Tree
from millstream.model.config.errors import InvalidConfig
from millstream.model.ids import BrokerId
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock

log = get_logger("millstream.broker.cluster")

_OTHERS: Final = 0o077


def open_coordination(
    settings: ClusterSettings, clock: Clock, broker_id: BrokerId
) -> KazooCoordination:
    """Raises InvalidConfig for a secret that cannot be read."""
    tree = Tree(nodes.TOPS, nodes.broker_secret_path(broker_id))
    return KazooCoordination(settings.hosts, clock, _access(settings), tree)


def _access(settings: ClusterSettings) -> Access | None:
    path = settings.secret_file
    if not path:
        log.warning(
            f"{SECRET_FILE} is not set: every client that can connect to the coordination service"
            " can change this cluster",
            servers=settings.hosts,
        )
        return None
    try:
        credentials = read_credentials(path)
        is_open = bool(Path(path).stat().st_mode & _OTHERS)
    except BadSecretFile as error:
        raise InvalidConfig(f"{SECRET_FILE}: {error}") from error
    except OSError as error:
        raise InvalidConfig(f"{SECRET_FILE}: {path}: {error.strerror}") from error
    if is_open:
        log.warning("other users can read the cluster's secret", file=path)
    return Access(credentials, settings.sets_acl)
