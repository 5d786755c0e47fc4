"""The cluster settings of a broker, as values."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.net.listeners import ListenerAddress
from millstream.controller.cluster.plans import Policy
from millstream.controller.image import Endpoint, TopicImage
from millstream.model.config.errors import InvalidConfig
from millstream.rpc.addresses import host_port

_PROTOCOL: Final = "security.inter.broker.protocol"
_SERVERS: Final = "zookeeper.connect"
_LISTENER: Final = "inter.broker.listener.name"
SECRET_FILE: Final = "zookeeper.secret.file"  # noqa: S105 - a setting's name


class ClusterSettings(NamedTuple):
    """Settings of the coordination service and of connections between brokers."""

    servers: tuple[str, ...]
    """Of the coordination service, as `host:port`."""
    session_timeout_ms: int
    connection_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    hands_over: bool
    """Whether a stop is a controlled shutdown."""
    rebalances: bool
    rebalance_interval_s: float
    secret_file: str = ""
    """With the secret that proves to the coordination service who we are; "": none."""
    sets_acl: bool = True
    """Whether nodes are for those with the secret only."""

    @property
    def hosts(self) -> str:
        """The servers as a connection string of ZooKeeper's clients."""
        return ",".join(self.servers)


class ReplicaSettings(NamedTuple):
    """How a follower fetches, and when it is no longer in sync."""

    fetch_backoff_ms: int
    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_response_max_bytes: int
    fetch_wait_max_ms: int
    high_watermark_checkpoint_interval_ms: int
    lag_time_max_ms: int
    socket_timeout_ms: int


def cluster_settings(configs: BrokerConfigs) -> ClusterSettings:
    """Of a broker with `zookeeper.connect`."""
    session_ms = configs.get_int("zookeeper.session.timeout.ms")
    is_given = configs.is_set("zookeeper.connection.timeout.ms")
    wait_ms = configs.get_int("zookeeper.connection.timeout.ms") if is_given else session_ms
    return ClusterSettings(
        servers=tuple(configs.get_list(_SERVERS)),
        session_timeout_ms=session_ms,
        connection_timeout_s=wait_ms / 1000,
        request_timeout_s=configs.get_int("request.timeout.ms") / 1000,
        connect_timeout_s=configs.get_int("socket.connection.setup.timeout.ms") / 1000,
        hands_over=configs.get_bool("controlled.shutdown.enable"),
        rebalances=configs.get_bool("auto.leader.rebalance.enable"),
        rebalance_interval_s=configs.get_int("leader.imbalance.check.interval.seconds"),
        secret_file=configs.get_text(SECRET_FILE),
        sets_acl=configs.get_bool("zookeeper.set.acl"),
    )


def replica_settings(configs: BrokerConfigs) -> ReplicaSettings:
    """Raises InvalidConfig if followers would fall out of sync while they wait."""
    found = ReplicaSettings(
        fetch_backoff_ms=configs.get_int("replica.fetch.backoff.ms"),
        fetch_max_bytes=configs.get_int("replica.fetch.max.bytes"),
        fetch_min_bytes=configs.get_int("replica.fetch.min.bytes"),
        fetch_response_max_bytes=configs.get_int("replica.fetch.response.max.bytes"),
        fetch_wait_max_ms=configs.get_int("replica.fetch.wait.max.ms"),
        high_watermark_checkpoint_interval_ms=configs.get_int(
            "replica.high.watermark.checkpoint.interval.ms"
        ),
        lag_time_max_ms=configs.get_int("replica.lag.time.max.ms"),
        socket_timeout_ms=configs.get_int("replica.socket.timeout.ms"),
    )
    if found.fetch_wait_max_ms >= found.lag_time_max_ms:
        raise InvalidConfig(
            f"replica.fetch.wait.max.ms ({found.fetch_wait_max_ms}) must be below"
            f" replica.lag.time.max.ms ({found.lag_time_max_ms}): followers would fall out of sync"
        )
    return found


def topic_policy(configs: BrokerConfigs) -> Policy:
    """The settings that elections need, read at each election: they can change at any time."""

    def in_sync_min(topic: TopicImage) -> int:
        wanted = int(configs.topic_text(topic.configs, "min.insync.replicas"))
        return min(wanted, max((len(one.replicas) for one in topic.partitions), default=wanted))

    def is_unclean_allowed(topic: TopicImage) -> bool:
        return configs.topic_text(topic.configs, "unclean.leader.election.enable") == "true"

    return Policy(in_sync_min, is_unclean_allowed)


class PolicyMaker:
    """Makes policies from the cluster's dynamic settings; caches the last: they rarely change."""

    def __init__(self, configs: BrokerConfigs) -> None:
        self._configs = configs
        self._made: tuple[Mapping[str, str], Policy] | None = None

    def __call__(self, broker_configs: Mapping[str, Mapping[str, str]]) -> Policy:
        default = broker_configs.get("", {})
        if self._made is None or self._made[0] != default:
            self._made = dict(default), topic_policy(self._configs.with_defaults(default))
        return self._made[1]


def inter_broker_listener(
    configs: BrokerConfigs, bound: list[ListenerAddress], protocols: dict[str, str]
) -> str:
    """Name of the inter-broker listener; raises InvalidConfig without one."""
    name = configs.get_text(_LISTENER).upper()
    if name and configs.is_set(_PROTOCOL):
        raise InvalidConfig(f"{_LISTENER} and {_PROTOCOL} must not both be set")
    wanted = configs.get_text(_PROTOCOL).upper()
    for one in bound:
        if one.name == name or (not name and protocols.get(one.name, one.name).upper() == wanted):
            return one.name
    raise InvalidConfig(
        f"{_LISTENER}: there is no listener {name}" if name else f"{_PROTOCOL}: no such listener"
    )


def listener_for_brokers(configs: BrokerConfigs) -> str | None:
    """The only listener on which brokers are accepted as such; None: any."""
    return configs.get_text(_LISTENER).upper() or None


def addresses_for_brokers(endpoints: Sequence[Endpoint], only: str | None) -> frozenset[str]:
    """The addresses at which other brokers connect to this one."""
    return frozenset(
        host_port(one.host, one.port) for one in endpoints if only in (None, one.listener)
    )
