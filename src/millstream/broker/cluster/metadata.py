"""Metadata as handlers of a broker in a cluster see it and change it.

Handlers read this broker's image. Changes are made only on the controller: requests of clients have
been forwarded there, and the broker sends its own requests there like a client.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millstream.broker.cluster.controller_calls import GivenUp
from millstream.broker.cluster.member import ClusterMember
from millstream.broker.requests.context import Peer
from millstream.broker.requests.error_codes import code_of
from millstream.controller.cluster.port import ClusterController
from millstream.controller.image import ClusterImage, TopicImage
from millstream.controller.topics import MorePartitions, NewTopic, TopicDefaults
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, TopicId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.authenticate_broker import (
    AuthenticateBrokerRequest,
    AuthenticateBrokerResponse,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.pull_metadata import PullMetadataRequest, PullMetadataResponse

CREATE_WAIT_S: Final = 10.0
"""For the automatic creation of topics; then the client has to retry."""
SHOW_WAIT_S: Final = 2.0
"""Until a topic that was created is in this broker's image."""

_PURPOSE: Final = "forward"


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


class ClusterMetadata:
    """Implements `MetadataControl`, and the `Membership` that handlers see.

    Without state of its own: `ClusterMember` has it.
    """

    def __init__(self, member: ClusterMember, defaults: Callable[[], TopicDefaults]) -> None:
        self._member = member
        self._defaults = defaults

    @property
    def image(self) -> ClusterImage:
        return self._member.image

    @property
    def deciding_image(self) -> ClusterImage:
        return self._member.active().image

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self._member.broker_epoch

    @property
    def is_active(self) -> bool:
        return self._member.is_active

    def active(self) -> ClusterController:
        return self._member.active()

    async def pull_metadata(self, request: PullMetadataRequest) -> PullMetadataResponse:
        return await self._member.pull_metadata(request)

    async def authenticate(
        self, peer: Peer, request: AuthenticateBrokerRequest
    ) -> AuthenticateBrokerResponse:
        return await self._member.authenticator.answer(peer, request)

    async def create_topics(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
    ) -> list[TopicImage | OperatingError]:
        return await self._member.active().create_topics(
            wanted, validate_only=validate_only, defaults=defaults
        )

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[OperatingError | None]:
        return await self._member.active().delete_topics(topics)

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[OperatingError | None]:
        return await self._member.active().create_partitions(wanted, validate_only=validate_only)

    async def alter_topic_configs(
        self, topic: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        controller = self._member.active()
        await controller.alter_topic_configs(topic, configs, validate_only=validate_only)

    async def alter_broker_configs(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        controller = self._member.active()
        await controller.alter_broker_configs(name, configs, validate_only=validate_only)

    # -- automatic creation of topics ------------------------------------------------------

    async def create_missing(self, wanted: Sequence[NewTopic]) -> dict[str, ErrorCode]:
        """Errors of those not created; the others are in this broker's image, if in time."""
        names = [one.name for one in wanted]
        is_over = asyncio.Event()
        handle = asyncio.get_running_loop().call_later(CREATE_WAIT_S, is_over.set)

        async def call_local(controller: ClusterController) -> dict[str, ErrorCode]:
            outcomes = await controller.create_topics(wanted, defaults=self._defaults())
            return {
                name: code_of(outcome)
                for name, outcome in zip(names, outcomes, strict=True)
                if isinstance(outcome, OperatingError)
            }

        async def call_remote(send: Callable[[Any], Any]) -> dict[str, ErrorCode]:
            topics = [_creatable(one) for one in wanted]
            timeout_ms = int(CREATE_WAIT_S * 1000)
            answer = await send(CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms))
            codes = {one.name: ErrorCode(one.error_code) for one in answer.topics}
            return {name: code for name, code in codes.items() if code is not ErrorCode.NONE}

        try:
            failures = await self._member.calls.call(
                call_local, call_remote, purpose=_PURPOSE, is_wanted=lambda: not is_over.is_set()
            )
        except GivenUp:
            return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
        finally:
            handle.cancel()
        return await self._wait_until_shown(names, failures)

    async def _wait_until_shown(
        self, names: Sequence[str], failures: dict[str, ErrorCode]
    ) -> dict[str, ErrorCode]:
        exists = ErrorCode.TOPIC_ALREADY_EXISTS  # another client was faster
        failures = {name: code for name, code in failures.items() if code is not exists}
        made = [name for name in names if name not in failures]
        try:
            async with asyncio.timeout(SHOW_WAIT_S):
                await self._member.metadata_follower.wait_for(
                    lambda image: all(name in image.topics for name in made)
                )
        except TimeoutError:
            late = [name for name in made if name not in self.image.topics]
            return {**failures, **dict.fromkeys(late, ErrorCode.LEADER_NOT_AVAILABLE)}
        return failures
