"""From a target to an open connection. Single attempts; the caller retries."""

import asyncio
from collections.abc import Iterable

from millstream.client.bootstrap import Search, shuffled
from millstream.client.errors import ClientClosed, TopicUnknown, code_of, error_for
from millstream.client.metadata import Broker, Leader, MetadataCache, TopicInfo
from millstream.client.metadata_refresh import Refresher
from millstream.client.retries import Remedy
from millstream.client.settings import ClientSettings
from millstream.client.targets import (
    AnyBroker,
    Controller,
    CoordinatorOf,
    LeaderOf,
    Node,
    Target,
)
from millstream.model.ids import BrokerId, TopicPartition
from millstream.rpc.connection import Connection
from millstream.rpc.connections import Address, Connections
from millstream.runtime.network import Network
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

_FIRST_WITH_KEYS = 4
"""Version of FindCoordinator that takes several keys."""


class Routes:
    """The connections of one client, by target."""

    def __init__(
        self,
        settings: ClientSettings,
        metadata: MetadataCache,
        network: Network,
        randomness: Randomness,
    ) -> None:
        self._bootstrap = [Address(one.host, one.port) for one in settings.bootstrap_servers]
        self._metadata = metadata
        self._randomness = randomness
        self._connections = Connections(
            network, settings.rpc, randomness, backoff=settings.reconnect_backoff
        )
        self._search = Search()
        self._refresher = Refresher(metadata, self._any)
        self._brokers_are_stale = False
        """A broker that was addressed by id, or as the controller, did not serve."""
        self._coordinators: dict[CoordinatorOf, Broker] = {}
        self._is_closed = False

    @property
    def unreached(self) -> dict[str, str]:
        """Addresses that failed, and why, while no broker can be reached."""
        return self._search.reasons

    def check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed

    # -- targets

    async def connection(self, to: Target, *, purpose: str = "") -> Connection:
        """Raises an RpcError or a ClientError."""
        self.check_open()
        match to:
            case AnyBroker():
                return await self._any()
            case LeaderOf(partition):
                broker = (await self.leader(partition)).broker
            case Controller():
                broker = await self._controller()
            case Node(broker_id):
                broker = await self._node(broker_id)
            case CoordinatorOf():
                broker = await self._coordinator(to)
        return await self.connect(broker, purpose=purpose)

    async def connect(self, broker: Broker, *, purpose: str = "") -> Connection:
        return await self._get(Address(broker.host, broker.port, purpose))

    def existing(self, broker: Broker, *, purpose: str = "") -> Connection | None:
        return self._connections.existing(Address(broker.host, broker.port, purpose))

    async def _get(self, address: Address) -> Connection:
        self.check_open()
        connection = await self._connections.get(address)
        self._search.reasons = {}
        return connection

    async def _any(self) -> Connection:
        """An open connection if there is one, else the first that can be made."""
        known = [Address(one.host, one.port) for one in self._metadata.brokers]
        mixed = shuffled(known, self._randomness) + shuffled(self._bootstrap, self._randomness)
        addresses = list(dict.fromkeys(mixed))
        open_ones = [one for at in addresses if (one := self._connections.existing(at)) is not None]
        if open_ones:
            return min(open_ones, key=lambda one: one.in_flight)
        addresses.sort(key=self._connections.wait_s)
        return await self._search.connect_first(addresses, self._get)

    async def _controller(self) -> Broker:
        if self._brokers_are_stale or self._metadata.controller is None:
            await self.refresh()
        found = self._metadata.controller
        if found is None:
            raise error_for(ErrorCode.NOT_CONTROLLER, about="the controller")
        return found

    async def _node(self, broker_id: BrokerId) -> Broker:
        if self._brokers_are_stale or self._metadata.broker(broker_id) is None:
            await self.refresh()
        found = self._metadata.broker(broker_id)
        if found is None:
            raise error_for(ErrorCode.BROKER_NOT_AVAILABLE, about=f"broker {broker_id}")
        return found

    async def _coordinator(self, of: CoordinatorOf) -> Broker:
        if of in self._coordinators:
            return self._coordinators[of]
        connection = await self._any()
        has_keys = connection.version_of(FindCoordinatorRequest) >= _FIRST_WITH_KEYS
        request = FindCoordinatorRequest(
            key="" if has_keys else of.key,
            key_type=of.kind,
            coordinator_keys=[of.key] if has_keys else [],
        )
        response = await connection.send(request)
        found = response.coordinators[0] if has_keys else response
        code = code_of(found.error_code)
        if code is not ErrorCode.NONE:
            raise error_for(code, about=str(of), message=found.error_message)
        broker = Broker(BrokerId(found.node_id), found.host, found.port)
        self._coordinators[of] = broker
        return broker

    async def leader(self, partition: TopicPartition) -> Leader:
        """From the cache if it is fresh."""
        name, now_s = partition.topic, asyncio.get_running_loop().time()
        self._metadata.use(name, now_s)
        found = self._metadata.leader_of(partition)
        if found is None or not self._metadata.is_fresh(name, now_s):
            await self.refresh([name])
            found = self._metadata.leader_of(partition)
        if found is not None:
            return found
        topic = self._metadata.topic(name)
        if topic is None:
            raise error_for(self._metadata.error_of(name), topic=name)
        if not 0 <= partition.partition < topic.partition_count:
            raise TopicUnknown(name, partition=partition.partition)
        raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, about=str(partition))

    def repair(self, remedy: Remedy, to: Target) -> None:
        """Drop what a failure has shown to be wrong; it is looked up when it is next needed."""
        if Remedy.BOOTSTRAP in remedy:
            self._metadata.forget_brokers()
        if Remedy.REFRESH in remedy:
            if isinstance(to, LeaderOf):
                self._metadata.partition_failed(to.partition)
            elif isinstance(to, Controller | Node):
                self._brokers_are_stale = True
        if Remedy.FIND_COORDINATOR in remedy and isinstance(to, CoordinatorOf):
            self._coordinators.pop(to, None)

    # -- metadata

    async def refresh(self, names: Iterable[str] = (), *, creates: bool = False) -> None:
        """One metadata request for brokers, for topics that are due, and for these."""
        self.check_open()
        await self._refresher.refresh(names, creates=creates)
        self._brokers_are_stale = False

    async def all_topics(self) -> dict[str, TopicInfo]:
        self.check_open()
        return await self._refresher.all_topics()

    async def close(self) -> None:
        self._is_closed = True
        await self._refresher.close()
        await self._connections.close()
