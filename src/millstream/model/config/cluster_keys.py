"""The settings of a broker in a cluster: coordination, replication, the controller.

A broker without `zookeeper.connect` is standalone: these have no effect on it.
"""

from typing import Final

from millstream.model.config.definition import ConfigKey, ConfigType, Mode, at_least, one_of
from millstream.model.config.topic_keys import LONG_MAX

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_BOOLEAN, _STRING = ConfigType.BOOLEAN, ConfigType.STRING
_INT, _LONG = ConfigType.INT, ConfigType.LONG

CLUSTER_ROWS: Final = (
    ConfigKey(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        "true",
        "Whether the controller gives leadership back to the preferred replicas.",
    ),
    ConfigKey(
        "controlled.shutdown.enable",
        _BOOLEAN,
        "true",
        "Whether a broker hands its leaderships over before it stops.",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Maximum bytes per second that this broker fetches of replicas in the topics'"
        " follower.replication.throttled.replicas while they are not in sync; 0 holds them back.",
        at_least(0),
        mode=Mode.CLUSTER_WIDE,
        is_dynamic_only=True,
    ),
    ConfigKey(
        "inter.broker.listener.name",
        _STRING,
        None,
        "The listener on which this broker connects to others, and the only one on which it answers"
        " requests between brokers; without it that is the first one whose protocol is"
        " security.inter.broker.protocol, and any listener answers. To change it, stop all brokers:"
        " brokers that differ in it refuse each other.",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        "300",
        "How often the controller checks which partitions are not led by their preferred replica.",
        at_least(1),
    ),
    ConfigKey(
        "leader.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Maximum bytes per second that this broker sends of replicas in the topics'"
        " leader.replication.throttled.replicas to followers that are not in sync; 0 sends none.",
        at_least(0),
        mode=Mode.CLUSTER_WIDE,
        is_dynamic_only=True,
    ),
    ConfigKey(
        "replica.fetch.backoff.ms",
        _INT,
        "1000",
        "How long a follower waits after a fetch from the leader failed, or returned an error for"
        " a partition.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        _INT,
        "1048576",
        "Maximum bytes that a follower fetches of one partition; a first batch that is larger is"
        " still sent.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        _INT,
        "1",
        "A follower's fetch waits until there is at least this much, or replica.fetch.wait.max.ms.",
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        _INT,
        "10485760",
        "Maximum bytes that a follower fetches in one request; a first batch that is larger is"
        " still sent.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        _INT,
        "500",
        "How long a follower's fetch waits for records; it must be below replica.lag.time.max.ms.",
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        "5000",
        "How often high watermarks are stored.",
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        _LONG,
        "30000",
        "A follower that has not caught up to the log's end for this long is out of sync.",
    ),
    ConfigKey(
        "replica.selector.class",
        _STRING,
        None,
        "With RackAwareReplicaSelector consumers that send their rack read from a replica in it;"
        " otherwise from the leader. Only Kafka's own two selectors are supported.",
        one_of(RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector"),
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        _INT,
        "30000",
        "How long a follower waits for the response to a fetch.",
    ),
    ConfigKey(
        "request.timeout.ms",
        _INT,
        "30000",
        "How long a broker waits for another's response, and for a controller to be elected.",
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        _STRING,
        "PLAINTEXT",
        "Protocol of the listener that other brokers connect to, where none is named.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        _LONG,
        "10000",
        "How long a connection to another broker may take to be made.",
    ),
    ConfigKey(
        "zookeeper.connect",
        ConfigType.LIST,
        None,
        "Servers of the coordination service as host:port, optionally with a chroot path after"
        " the last one; without it the broker is standalone.",
    ),
    ConfigKey(
        "zookeeper.connection.timeout.ms",
        _INT,
        None,
        "How long a start waits for the coordination service, in addition to two session timeouts."
        " Default: the value of zookeeper.session.timeout.ms.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.secret.file",
        _STRING,
        None,
        "File with the secret by which this broker proves to the coordination service that it is"
        " of the cluster: cluster.secret in the keeper's data directory, or one of your own for"
        " ZooKeeper. The keeper serves no client without it.",
    ),
    ConfigKey(
        "zookeeper.session.timeout.ms",
        _INT,
        "6000",
        "How long a broker may be silent before the coordination service ends its session.",
        at_least(1),
    ),
    ConfigKey(
        "zookeeper.set.acl",
        _BOOLEAN,
        "true",
        "With zookeeper.secret.file: whether the cluster's nodes are for those with the secret"
        " only. false while brokers of an existing cluster are given the secret one by one.",
    ),
)
