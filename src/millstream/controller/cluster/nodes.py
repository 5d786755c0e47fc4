"""The nodes of a cluster: where they are and what is in them, as Kafka 3 wrote them.

What Kafka wrote can be read, and what it does not know stands beside its own fields, which its
readers skip; so do we with what we do not know. Content that cannot be believed is DamagedNode,
never a guess.
"""

import json
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.image import GROUP_CONFIGS, NO_LEADER, Endpoint, PartitionImage
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from millstream.storage.directories.partition_metadata import format_topic_id, parse_topic_id

T = TypeVar("T")
Replicas = tuple[BrokerId, ...]

# -- paths -------------------------------------------------------------------------------------

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
DELETIONS: Final = "/admin/delete_topics"
PRODUCER_IDS: Final = "/latest_producer_id_block"
KNOWN_BROKERS: Final = "/millstream/brokers"
BROKER_SECRETS: Final = "/millstream/secrets"

PERSISTENT: Final = (
    "/admin",
    DELETIONS,
    "/brokers",
    BROKER_IDS,
    "/brokers/seqid",
    TOPICS,
    "/cluster",
    "/config",
    BROKER_CONFIGS,
    "/config/clients",
    "/config/ips",
    TOPIC_CONFIGS,
    "/config/users",
    PRODUCER_IDS,
    "/millstream",
    KNOWN_BROKERS,
    BROKER_SECRETS,
)
"""Created empty at the first start, each after its parent."""

TOPS: Final = (
    *(path for path in PERSISTENT if path.count("/") == 1),
    *(CONTROLLER, CONTROLLER_EPOCH),
)
"""All nodes of the cluster are these, or below them."""

ALL_BROKERS: Final = "<default>"
"""In a path; in an image it is the empty name."""


def broker_path(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_secret_path(broker_id: BrokerId) -> str:
    """Of a node that the same multi creates as the registration: the czxid of both is the broker's
    epoch. It stays until the broker's next registration: a broker that has lost its session without
    noticing can still prove itself, and learns from the others that it leads nothing any more.
    """
    return f"{BROKER_SECRETS}/{broker_id}"


def known_broker_path(broker_id: BrokerId) -> str:
    return f"{KNOWN_BROKERS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_configs_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_configs_path(name: str) -> str:
    """Of a broker's id as text, of "" for all brokers, or of a group."""
    if name.startswith(GROUP_CONFIGS):
        # A group's id may be anything, a node's name not.
        raw = name.removeprefix(GROUP_CONFIGS).encode("utf-8", "surrogatepass")
        name = GROUP_CONFIGS + urlsafe_b64encode(raw).decode()
    return f"{BROKER_CONFIGS}/{name or ALL_BROKERS}"


def config_name(node: str) -> str:
    """Whose settings the node has; the opposite of `broker_configs_path`. Raises DamagedNode."""
    if node == ALL_BROKERS:
        return ""
    if not node.startswith(GROUP_CONFIGS):
        return node
    try:
        raw = b64decode(node.removeprefix(GROUP_CONFIGS), altchars=b"-_", validate=True)
        return GROUP_CONFIGS + raw.decode("utf-8", "surrogatepass")
    except ValueError as error:
        raise DamagedNode(f"{BROKER_CONFIGS}/{node}", str(error)) from error


def deletion_path(topic: str) -> str:
    return f"{DELETIONS}/{topic}"


# -- reading JSON ------------------------------------------------------------------------------


class _WrongField(ValueError):
    """Why; the caller adds the path."""


def _read(path: str, data: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise _WrongField("it is not a JSON object")
        return read(fields)
    except _WrongField as error:
        raise DamagedNode(path, str(error)) from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DamagedNode(path, f"it is not JSON: {data[:60]!r}") from error


def _int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _WrongField(f"{name} is {value!r}, not a number")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _WrongField(f"{name} is {value!r}, not text")
    return value


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise _WrongField(f"{name} is {value!r}, not an object")
    return value


def _brokers(fields: Mapping[str, Any], name: str, *, is_needed: bool = False) -> Replicas:
    value = fields.get(name, None if is_needed else ())
    if not isinstance(value, list | tuple):
        raise _WrongField(f"{name} is {value!r}, not a list of brokers")
    if any(not isinstance(one, int) or isinstance(one, bool) or one < 0 for one in value):
        raise _WrongField(f"{name} is {value!r}: no broker has such an id")
    if len(set(value)) < len(value):
        raise _WrongField(f"{name} is {value!r}: a broker is there twice")
    return tuple(value)


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


# -- topics and partitions ---------------------------------------------------------------------


class Assignment(NamedTuple):
    """The replicas of a partition."""

    replicas: Replicas
    adding: Replicas = ()
    removing: Replicas = ()


class TopicNode(NamedTuple):
    """The content of a topic's node. Kafka before 2.8 had no topic ids."""

    topic_id: TopicId | None
    assignments: list[Assignment]


def encode_topic(topic_id: TopicId, partitions: Sequence[PartitionImage]) -> bytes:
    """Version 3, with the replicas that a reassignment adds and removes."""
    replicas = ",".join(
        [f'"{one.index}":[{",".join(map(str, one.replicas))}]' for one in partitions]
    )
    adding = {str(one.index): one.adding for one in partitions if one.adding}
    removing = {str(one.index): one.removing for one in partitions if one.removing}
    return (
        f'{{"version":3,"topic_id":"{format_topic_id(topic_id)}","partitions":{{{replicas}}},'
        f'"adding_replicas":{_encode(adding).decode()},'
        f'"removing_replicas":{_encode(removing).decode()}}}'
    ).encode("ascii")


def decode_topic(topic: str, data: bytes) -> TopicNode:
    return _read(topic_path(topic), data, _topic)


def _topic(fields: dict[str, Any]) -> TopicNode:
    topic_id = None
    if fields.get("topic_id") is not None:
        topic_id = parse_topic_id(_text(fields, "topic_id"))
        if topic_id is None:
            raise _WrongField(f"{fields['topic_id']!r} is no topic id")
    partitions = _object(fields, "partitions")
    adding, removing = _object(fields, "adding_replicas"), _object(fields, "removing_replicas")
    if not partitions:
        raise _WrongField("it has no partitions")
    assignments = []
    for index in range(len(partitions)):
        name = str(index)
        if name not in partitions:
            raise _WrongField(f"partition {index} is missing")
        one = Assignment(
            _brokers(partitions, name, is_needed=True),
            _brokers(adding, name),
            _brokers(removing, name),
        )
        if not one.replicas or not {*one.adding, *one.removing} <= {*one.replicas}:
            raise _WrongField(f"the replicas of partition {index} contradict each other: {one}")
        assignments.append(one)
    return TopicNode(topic_id, assignments)


def encode_state(partition: PartitionImage, *, controller_epoch: int) -> bytes:
    """Version 1, with the ELR, the last known leader, the lost replicas and the full ones."""
    lost = f',"lost":[{",".join(map(str, partition.lost))}]' if partition.lost else ""
    full = f',"full":[{",".join(map(str, partition.full))}]' if partition.full else ""
    return (
        f'{{"version":1,"leader":{partition.leader},"leader_epoch":{partition.leader_epoch},'
        f'"controller_epoch":{controller_epoch},"isr":[{",".join(map(str, partition.isr))}],'
        f'"elr":[{",".join(map(str, partition.elr))}],'
        f'"last_known_leader":{partition.last_known_leader}{lost}{full}}}'
    ).encode("ascii")


def decode_state(
    partition: TopicPartition, data: bytes, assignment: Assignment, *, version: int
) -> PartitionImage:
    """A partition with its node's version as its partition epoch."""

    def read(fields: dict[str, Any]) -> PartitionImage:
        isr = _brokers(fields, "isr", is_needed=True)
        elr = _brokers(fields, "elr")
        leader = BrokerId(_int(fields, "leader"))
        leader_epoch = _int(fields, "leader_epoch")
        if leader_epoch < 0:
            raise _WrongField(f"leader_epoch is {leader_epoch}")
        if leader != NO_LEADER and leader not in isr:
            raise _WrongField(f"leader {leader} is not in the ISR {list(isr)}")
        lost = _brokers(fields, "lost")
        if not {*isr, *elr, *lost} <= {*assignment.replicas}:
            raise _WrongField(
                f"ISR {list(isr)}, ELR {list(elr)} and lost ones {list(lost)} are not among the"
                f" replicas {list(assignment.replicas)}"
            )
        if not {*isr, *elr}.isdisjoint(lost):
            raise _WrongField(f"of the lost {list(lost)} some are in sync or eligible")
        return PartitionImage(
            index=partition.partition,
            replicas=assignment.replicas,
            isr=isr,
            leader=leader,
            leader_epoch=LeaderEpoch(leader_epoch),
            partition_epoch=version,
            elr=tuple(one for one in elr if one not in isr),
            last_known_leader=BrokerId(_int(fields, "last_known_leader", NO_LEADER)),
            adding=assignment.adding,
            removing=assignment.removing,
            lost=lost,
            full=tuple([one for one in _brokers(fields, "full") if one in assignment.replicas]),
        )

    return _read(state_path(partition.topic, partition.partition), data, read)


# -- brokers -----------------------------------------------------------------------------------

_ENDPOINT: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


class Registration(NamedTuple):
    """A broker's registration, and the epoch of its node."""

    broker_id: BrokerId
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The czxid of the node."""
    previous_epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The epoch under which it stopped cleanly, or had a session that it lost."""
    directory_id: UUID | None = None
    """The id of its data directory; a process with the same id, and its lock, is the same
    broker."""
    earlier_epochs: tuple[BrokerEpoch, ...] = ()
    """Epochs of the same process before the previous one that a controller may have seen last: it
    lost its session more than once between two reads, and nothing on its disk."""

    def is_proof_of(self, epoch: BrokerEpoch) -> bool:
        """Whether everything that was on its disk under that epoch is still there."""
        return epoch != NO_BROKER_EPOCH and epoch in (self.previous_epoch, *self.earlier_epochs)


def encode_registration(broker: Registration, *, timestamp_ms: int) -> bytes:
    """Version 5, with the directory id and the previous epoch."""
    plain = [one for one in broker.endpoints if one.security_protocol == "PLAINTEXT"]
    fields: dict[str, Any] = {
        "version": 5,
        "host": plain[0].host if plain else None,
        "port": plain[0].port if plain else -1,
        **_encode_endpoints(broker.endpoints),
        "features": {},
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "previous_epoch": broker.previous_epoch,
    }
    if broker.earlier_epochs:
        fields["earlier_epochs"] = list(broker.earlier_epochs)
    if broker.rack is not None:
        fields["rack"] = broker.rack
    if broker.directory_id is not None:
        fields["directory_id"] = format_topic_id(TopicId(broker.directory_id))
    return _encode(fields)


def _encode_endpoints(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    return {
        "endpoints": [_connection(one) for one in endpoints],
        "listener_security_protocol_map": {
            one.listener: one.security_protocol for one in endpoints
        },
    }


def _connection(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


def decode_registration(broker_id: BrokerId, data: bytes, *, epoch: BrokerEpoch) -> Registration:
    """Versions 2 to 5."""

    def read(fields: dict[str, Any]) -> Registration:
        rack = None if fields.get("rack") is None else _text(fields, "rack")
        directory_id = None
        if fields.get("directory_id") is not None:
            directory_id = parse_topic_id(_text(fields, "directory_id"))
            if directory_id is None:
                raise _WrongField(f"{fields['directory_id']!r} is no directory id")
        return Registration(
            broker_id,
            _decode_endpoints(fields),
            rack,
            epoch,
            BrokerEpoch(_int(fields, "previous_epoch", NO_BROKER_EPOCH)),
            directory_id,
            _epochs(fields, "earlier_epochs"),
        )

    return _read(broker_path(broker_id), data, read)


def _epochs(fields: Mapping[str, Any], name: str) -> tuple[BrokerEpoch, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        raise _WrongField(f"{name} is {value!r}, not a list of numbers")
    return tuple(map(BrokerEpoch, value))


def _decode_endpoints(fields: dict[str, Any]) -> tuple[Endpoint, ...]:
    listed = fields.get("endpoints")
    if not isinstance(listed, list):
        raise _WrongField(f"endpoints is {listed!r}, not a list")
    protocols = _object(fields, "listener_security_protocol_map")
    return tuple(_endpoint(one, protocols) for one in listed)


def _endpoint(text: object, protocols: Mapping[str, Any]) -> Endpoint:
    match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _WrongField(f"{text!r} is not an endpoint")
    listener, host, port = match.groups()
    return Endpoint(listener, host, int(port), str(protocols.get(listener, listener)))


class KnownBroker(NamedTuple):
    """What is recorded of a broker, whether it is alive or not."""

    epoch: BrokerEpoch
    rack: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    """Its addresses when it was last alive; none where an older version wrote the node."""


def encode_known_broker(broker: KnownBroker) -> bytes:
    fields: dict[str, Any] = {"version": 1, "broker_epoch": broker.epoch}
    if broker.rack is not None:
        fields["rack"] = broker.rack
    if broker.endpoints:
        fields.update(_encode_endpoints(broker.endpoints))
    return _encode(fields)


def decode_known_broker(broker_id: BrokerId, data: bytes) -> KnownBroker:
    def read(fields: dict[str, Any]) -> KnownBroker:
        rack = None if fields.get("rack") is None else _text(fields, "rack")
        endpoints = _decode_endpoints(fields) if "endpoints" in fields else ()
        return KnownBroker(BrokerEpoch(_int(fields, "broker_epoch")), rack, endpoints)

    return _read(known_broker_path(broker_id), data, read)


def parse_broker_id(parent: str, name: str) -> BrokerId:
    """The name of a node below `parent`; raises DamagedNode."""
    if not (name.isascii() and name.isdigit()):
        raise DamagedNode(f"{parent}/{name}", "its name is no broker id")
    return BrokerId(int(name))


# -- the small ones ----------------------------------------------------------------------------


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return _read(CLUSTER_ID, data, lambda fields: _text(fields, "id"))


def encode_controller(broker_id: BrokerId, *, timestamp_ms: int) -> bytes:
    """Version 2; by the last field Kafka's tools know that this is no KRaft controller."""
    fields = {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms)}
    return _encode({**fields, "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> BrokerId:
    return _read(CONTROLLER, data, lambda fields: BrokerId(_int(fields, "brokerid")))


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode("ascii")


def decode_controller_epoch(data: bytes) -> int:
    if re.fullmatch(rb"[0-9]{1,10}", data) is None:
        raise DamagedNode(CONTROLLER_EPOCH, f"{data[:60]!r} is no number")
    return int(data)


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(configs)})


def decode_configs(path: str, data: bytes) -> dict[str, str]:
    """Of a topic, a broker or all brokers; a node without content has none."""

    def read(fields: dict[str, Any]) -> dict[str, str]:
        configs = _object(fields, "config")
        return {name: _text(configs, name) for name in configs}

    return _read(path, data, read) if data else {}


def encode_producer_ids(broker_id: BrokerId, block: range) -> bytes:
    """Numbers are text, and the end is inclusive, as in Kafka."""
    return _encode(
        {
            "version": 1,
            "broker": broker_id,
            "block_start": str(block.start),
            "block_end": str(block.stop - 1),
        }
    )


def decode_producer_ids(data: bytes) -> range | None:
    """The last block that was allocated; None for an empty node."""

    def read(fields: dict[str, Any]) -> range:
        texts = _text(fields, "block_start"), _text(fields, "block_end")
        if any(re.fullmatch(r"[0-9]{1,19}", one) is None for one in texts):
            raise _WrongField(f"{texts} are no producer ids")
        start, last = map(int, texts)
        if last < start:
            raise _WrongField(f"the block from {start} to {last} is empty")
        return range(start, last + 1)

    return _read(PRODUCER_IDS, data, read) if data else None
