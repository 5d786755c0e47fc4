"""Protocols through which handlers use a broker's cluster membership and its administration.

`metadata.py` implements `Membership`; a handler uses nothing else of a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from millstream.controller.standalone.answers import StandaloneAdministration
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition

if TYPE_CHECKING:
    from millstream.broker.requests.context import Peer
    from millstream.broker.requests.services import Services
    from millstream.controller.cluster.port import ClusterController, ElectionKind, Reassignment
    from millstream.controller.topics import NewTopic
    from millstream.model.errors import OperatingError
    from millstream.wire.errors import ErrorCode
    from millstream.wire.messages.authenticate_broker import (
        AuthenticateBrokerRequest,
        AuthenticateBrokerResponse,
    )
    from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse


class Membership(Protocol):
    """A broker's membership of a cluster; a standalone broker has none."""

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Of this broker's registration."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""

    def active(self) -> "ClusterController":
        """The controller in this broker; raises NotController."""

    async def pull_metadata(self, request: "PullMetadataRequest") -> "PullMetadataResponse":
        """Metadata changes for another broker."""

    async def authenticate(
        self, peer: "Peer", request: "AuthenticateBrokerRequest"
    ) -> "AuthenticateBrokerResponse":
        """Let another broker prove itself; raises NotABroker, BrokerUnverifiable."""

    async def create_missing(self, wanted: "Sequence[NewTopic]") -> "dict[str, ErrorCode]":
        """Have the controller create topics that a client requests or needs.

        Returns the errors of those that were not created; the others are in this broker's image.
        """


class Administration(Protocol):
    """Administrative operations; see `controller/cluster/port.py`."""

    async def elect_leaders(
        self, kind: "ElectionKind", partitions: Sequence[TopicPartition] | None
    ) -> "dict[TopicPartition, OperatingError | None]": ...

    async def reassign_partitions(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> "dict[TopicPartition, OperatingError | None]": ...

    def reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> "list[Reassignment]": ...

    async def unregister_broker(self, broker_id: BrokerId) -> None: ...


def administration_of(services: "Services") -> Administration:
    """This broker's controller, or the standalone broker; raises NotController."""
    if services.membership is not None:
        return services.membership.active()
    return StandaloneAdministration(services.image)
