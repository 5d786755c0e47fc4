"""What handlers use. Built once by the composition in `broker.py` and passed everywhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from millstream.model.ids import BrokerId, TopicId
from millstream.runtime.timers import Timers

if TYPE_CHECKING:
    from millstream.broker.cluster.membership import Membership
    from millstream.broker.configs.broker_configs import BrokerConfigs
    from millstream.broker.fetch.sessions import FetchSessions
    from millstream.broker.groups.service import GroupService
    from millstream.broker.produce.producer_ids import ProducerIds
    from millstream.broker.requests.context import AnswerPart, Context, Peer, RequestFacts
    from millstream.controller.image import ClusterImage, TopicImage
    from millstream.controller.topics import MorePartitions, NewTopic, TopicDefaults
    from millstream.model.errors import OperatingError
    from millstream.observe.broker_metrics import BrokerMetrics
    from millstream.observe.client_log import ClientLog
    from millstream.replication.partitions import Partitions
    from millstream.runtime.clock import Clock
    from millstream.runtime.randomness import Randomness
    from millstream.runtime.scheduler import StepGenerator
    from millstream.storage.manager.log_manager import LogManager


class Responder(Protocol):
    """Turns a handler's answer into a frame; see `broker/requests/dispatch.py`."""

    def serve(self, peer: "Peer", facts: "RequestFacts", body: memoryview) -> None: ...

    def answer(self, context: "Context", response: Any) -> None: ...

    def answer_parts(
        self, context: "Context", body: "Sequence[AnswerPart]", *, error_count: int
    ) -> None: ...

    def answer_frame(
        self,
        context: "Context",
        parts: "Sequence[AnswerPart]",
        size_bytes: int,
        *,
        error_count: int,
    ) -> None: ...

    def answer_nothing(self, context: "Context") -> None: ...

    def go_on(
        self,
        context: "Context",
        steps: "StepGenerator[None]",
        *,
        kept_bytes: int,
        more_bytes: int,
    ) -> None:
        """Serve the rest of a request that has waited, in steps; they end with its answer."""


class MetadataControl(Protocol):
    """Changes of metadata; each raises NotController where this broker cannot make them."""

    @property
    def image(self) -> "ClusterImage":
        """The cluster's metadata as this broker has it."""

    @property
    def deciding_image(self) -> "ClusterImage":
        """The metadata on which the next change is decided."""

    async def create_topics(
        self,
        wanted: "Sequence[NewTopic]",
        *,
        validate_only: bool = False,
        defaults: "TopicDefaults" = ...,
    ) -> "list[TopicImage | OperatingError]": ...

    async def delete_topics(
        self, topics: Sequence[str | TopicId]
    ) -> "list[OperatingError | None]": ...

    async def create_partitions(
        self, wanted: "Sequence[MorePartitions]", *, validate_only: bool = False
    ) -> "list[OperatingError | None]": ...

    async def alter_topic_configs(
        self, topic: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None: ...

    async def alter_broker_configs(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None: ...


@dataclass(slots=True, kw_only=True)
class Services:
    """One broker's parts."""

    broker_id: BrokerId
    clock: "Clock"
    randomness: "Randomness"
    timers: Timers
    responder: Responder
    configs: "BrokerConfigs"
    """Broker settings, static and dynamic; and every topic's effective settings."""
    controller: MetadataControl
    """Changes of topics and dynamic configuration."""
    logs: "LogManager"
    partitions: "Partitions"
    """The partitions this broker leads; produce, fetch and offsets go through them."""
    fetch_sessions: "FetchSessions"
    producer_ids: "ProducerIds"
    metrics: "BrokerMetrics"
    client_log: "ClientLog"
    """For log lines that clients can cause."""
    membership: "Membership | None" = None
    """This broker's membership of a cluster; None: it is standalone."""
    groups: "GroupService | None" = None
    """The group coordinator; None only in tests of handlers without it."""
    unnamed_listeners: frozenset[str] = frozenset()
    """Listeners on all addresses without an advertised one; known once they are bound."""

    @property
    def image(self) -> "ClusterImage":
        """The current metadata; do not keep it over an await."""
        return self.controller.image
