"""The configuration handlers over a real controller, for tests."""

from collections.abc import Mapping
from typing import Any, cast

from kits.controller.controller_kit import ME, create, new_disk
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.handlers import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from millstream.broker.requests.context import Context, RequestFacts
from millstream.broker.requests.services import Services
from millstream.controller.image import ImageChange
from millstream.controller.standalone.controller import StandaloneController
from millstream.model.config.resources import ResourceType
from millstream.observe.client_log import ClientLog
from millstream.runtime.background import Background
from millstream.runtime.clock import SystemClock
from millstream.runtime.randomness import SeededRandomness
from millstream.runtime.scheduler import run_blocking
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.disk import SimDisk
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import alter_configs as whole
from millstream.wire.messages import incremental_alter_configs as single
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millstream.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC = "orders"

Keys = list[tuple[str, int, str | None]]


def code(number: int) -> ErrorCode:
    """The error of a response's number."""
    return next(one for one in ErrorCode if one == number)


class ConfigWorld:
    """One broker's controller and settings, and clients that ask about them."""

    def __init__(
        self,
        static: Mapping[str, str] | None = None,
        *,
        background: Background | None = None,
        disk: SimDisk | None = None,
    ) -> None:
        self.configs = BrokerConfigs(static or {}, broker_id=ME)
        self.disk = disk or new_disk()
        self.controller = StandaloneController(
            disk=self.disk,
            background=background or InlineBackground(),
            randomness=SeededRandomness(0),
            directories=["/data"],
            broker_id=ME,
            check_configs=self.configs.check_topic_configs,
        )
        self.controller.start()
        self.use_stored()
        self.controller.subscribe(self._changed)
        nothing = cast(Any, None)
        self.services = Services(
            broker_id=ME,
            clock=nothing,
            randomness=nothing,
            timers=nothing,
            responder=nothing,
            configs=self.configs,
            controller=self.controller,
            logs=nothing,
            partitions=nothing,
            fetch_sessions=nothing,
            producer_ids=nothing,
            client_log=ClientLog(SystemClock()),
            metrics=nothing,
        )

    def _changed(self, change: ImageChange) -> None:
        if change.brokers_reconfigured:
            self.use_stored()

    def use_stored(self) -> None:
        stored = self.controller.image.broker_configs
        self.configs.set_dynamic(broker=stored.get(str(ME), {}), default=stored.get("", {}))

    async def with_topic(self) -> "ConfigWorld":
        await create(self.controller, TOPIC)
        return self

    def context(self, request: Any, version: int) -> Context:
        facts = RequestFacts(request.API_KEY, version, 1, "test", 0, 0, 0)
        return Context(self.services, cast(Any, None), facts)

    # -- requests: all of them over the wire's bytes ---------------------------------------

    async def change(
        self, kind: int, name: str, keys: Keys, *, validate_only: bool = False
    ) -> tuple[ErrorCode, str | None]:
        """IncrementalAlterConfigs of one resource."""
        response = await self.incremental([(kind, name, keys)], validate_only=validate_only)
        only = response.responses[0]
        assert (only.resource_type, only.resource_name) == (kind, name)
        return code(only.error_code), only.error_message

    async def incremental(
        self, resources: list[tuple[int, str, Keys]], *, validate_only: bool = False
    ) -> single.IncrementalAlterConfigsResponse:
        request = single.IncrementalAlterConfigsRequest(
            resources=[
                single.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        single.AlterableConfig(name=key, config_operation=operation, value=value)
                        for key, operation, value in keys
                    ],
                )
                for kind, name, keys in resources
            ],
            validate_only=validate_only,
        )
        sent = single.IncrementalAlterConfigsRequest.decode(memoryview(request.encode(1)), 1)
        response = await incremental_alter_configs.handle(self.context(sent, 1), sent)
        encoded = memoryview(response.encode(1))
        return single.IncrementalAlterConfigsResponse.decode(encoded, 1)

    async def replace(
        self, kind: int, name: str, configs: list[tuple[str, str | None]]
    ) -> tuple[ErrorCode, str | None]:
        """AlterConfigs of one resource."""
        request = whole.AlterConfigsRequest(
            resources=[
                whole.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        whole.AlterableConfig(name=key, value=value) for key, value in configs
                    ],
                )
            ]
        )
        response = await alter_configs.handle(self.context(request, 2), request)
        only = response.responses[0]
        return code(only.error_code), only.error_message

    def describe_all(
        self,
        resources: list[tuple[int, str, list[str] | None]],
        *,
        version: int = 4,
        synonyms: bool = True,
        documentation: bool = False,
    ) -> list[DescribeConfigsResult]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=keys
                )
                for kind, name, keys in resources
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        response = run_blocking(describe_configs.handle(self.context(request, version), request))
        encoded = memoryview(response.encode(version))
        return DescribeConfigsResponse.decode(encoded, version).results

    def describe(
        self, kind: int, name: str, keys: list[str] | None = None
    ) -> dict[str, DescribeConfigsResourceResult]:
        """One resource's settings by name."""
        result = self.describe_all([(kind, name, keys)])[0]
        assert result.error_code == ErrorCode.NONE, result
        return {one.name: one for one in result.configs}

    def topic_value(self, key: str) -> str | None:
        return self.describe(ResourceType.TOPIC, TOPIC, [key])[key].value

    def list_resources(self, *types: int, version: int = 1) -> ListConfigResourcesResponse:
        request = ListConfigResourcesRequest(resource_types=list(types))
        response = run_blocking(
            list_config_resources.handle(self.context(request, version), request)
        )
        encoded = memoryview(response.encode(version))
        return ListConfigResourcesResponse.decode(encoded, version)
