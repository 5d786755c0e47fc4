"""The active controller: loads the cluster, watches brokers and handles requests.

The decisions themselves are in the pure modules beside this one; their order and their fencing in
`decisions` and `fenced_writes`. Here each request is mapped to its decision.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from millstream.controller.cluster import (
    brokers,
    full_replicas,
    isr_changes,
    leadership,
    lost_replicas,
    topics_plans,
)
from millstream.controller.cluster import reassignments as moves
from millstream.controller.cluster.candidate import Elected
from millstream.controller.cluster.decisions import Decide, Decisions
from millstream.controller.cluster.elections import UncleanElection
from millstream.controller.cluster.fenced_writes import Deposed, FencedWriter
from millstream.controller.cluster.image_loader import load_image_steps, recover_steps
from millstream.controller.cluster.node_reader import BrokerWatch, read_everything, registrations
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import (
    ElectionKind,
    FeedPosition,
    IsrChange,
    LostReplica,
    MetadataDelta,
    Reassignment,
    ReplicaName,
)
from millstream.controller.cluster.registration import Registered
from millstream.controller.cluster.tally import Tally
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.controller.topics import (
    CheckConfigs,
    MorePartitions,
    NewTopic,
    Rules,
    TopicDefaults,
)
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import StepGenerator, run_on_loop
from millstream.runtime.task_race import run_until_first

log = get_logger("millstream.controller.active")

T = TypeVar("T")

BrokerConfigs = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Kafka's settings for automatic preferred leader election."""

    is_enabled: bool = True
    """`auto.leader.rebalance.enable`."""
    interval_s: float = 300.0
    """`leader.imbalance.check.interval.seconds`."""
    percentage: int = 10
    """`leader.imbalance.per.broker.percentage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The broker's configuration as far as a controller needs it."""

    make_policy: Callable[[BrokerConfigs], Policy]
    """The rules for topics under these dynamic settings of brokers."""
    check_configs: CheckConfigs
    """Raises for settings that a topic may not have."""
    randomness: Randomness
    client_log: ClientLog
    balance: Balance = Balance()


VERSION_BITS: Final = 32
"""Bits for the changes of one controller; its epoch is in the bits above."""

NO_DEFAULTS: Final = TopicDefaults()


class ActiveController:
    """Lives from its election until it is deposed; implements `port.ClusterController`."""

    def __init__(
        self,
        incarnation: Registered,
        elected: Elected,
        settings: ControllerSettings,
        tally: Tally,
        broker_id: BrokerId,
    ) -> None:
        """`tally` is shared by all terms that this broker serves as controller."""
        self._session = incarnation.session
        self._elected = elected
        self._settings = settings
        self._broker_id = broker_id
        self.tally = tally
        writer = FencedWriter(self._session, epoch_version=elected.epoch_version)
        self._decisions = Decisions(writer, tally, settings.client_log)

    # -- life cycle ------------------------------------------------------------------------

    @property
    def controller_epoch(self) -> int:
        return self._elected.controller_epoch

    @property
    def is_open(self) -> bool:
        """Whether everything is loaded and requests are answered."""
        return self._decisions.is_open and not self._decisions.is_over

    @property
    def image(self) -> ClusterImage:
        """The committed image; raises NotController before everything is loaded."""
        return self._decisions.image

    async def run(self) -> None:
        """Returns when it was deposed; raises SessionLost, or what made it give up."""
        try:
            watch = BrokerWatch(self._session)
            await self._load(watch)
            works = [self._decisions.run(), self._follow_brokers(watch)]
            if self._settings.balance.is_enabled:
                works.append(self._balance())
            await run_until_first(*works)
        except Deposed:
            log.info("no longer controller", epoch=self.controller_epoch)
        finally:
            self.depose()

    def depose(self) -> None:
        """Nothing more is decided or written; waiting callers get NotController."""
        self._decisions.depose()

    async def _load(self, watch: BrokerWatch) -> None:
        found = {**await read_everything(self._session), **await watch.read()}
        loaded = await run_on_loop(load_image_steps(found, controller_id=self._broker_id))
        image = _first_version(loaded.image, self.controller_epoch)
        loaded = loaded._replace(image=image)
        self._decisions.begin(self.controller_epoch, image)
        changes = await self._decisions.carry_out(
            lambda image: recover_steps(loaded, self._policy(image))
        )
        self._log_broker_changes(changes)
        self._decisions.open()
        log.info(
            "controller is ready",
            epoch=self.controller_epoch,
            topics=len(self.image.topics),
            brokers=len(self.image.alive_brokers()),
        )

    # -- broker changes --------------------------------------------------------------------

    async def _follow_brokers(self, watch: BrokerWatch) -> None:
        while True:
            await watch.changed()
            registered = registrations(await watch.read())
            self._log_broker_changes(await self._decisions.make(self._plan_brokers(registered)))

    def _plan_brokers(
        self, registered: Mapping[BrokerId, Registration]
    ) -> Decide[brokers.BrokerChanges]:
        return lambda image: brokers.plan_brokers_steps(image, registered, self._policy(image))

    def _log_broker_changes(self, changes: brokers.BrokerChanges) -> None:
        if changes.joined or changes.left or changes.restarted:
            log.info(
                "brokers changed",
                joined=list(changes.joined),
                left=list(changes.left),
                restarted=list(changes.restarted),
                without_proof=list(changes.unproved),
            )
        self._report(changes.unclean_elections)

    def _report(self, unclean: Sequence[UncleanElection]) -> None:
        """Acknowledged records may be lost: always logged.

        Not as unclean where the last leader leads again. No other replica has more; whether it has
        all that it had, its own broker finds out and reports when it recovers the log.
        """
        last_leaders = [one for one in unclean if one.is_last_known]
        self.tally.last_leader_elections += len(last_leaders)
        self.tally.unclean_elections += len(unclean) - len(last_leaders)
        if last_leaders:
            log.warning(
                "last leaders elected again although they were not shut down cleanly",
                partitions=len(last_leaders),
                first=str(last_leaders[0].partition),
                leader=last_leaders[0].leader,
            )
        for one in unclean:
            if not one.is_last_known:
                log.warning(
                    "unclean leader election", partition=str(one.partition), leader=one.leader
                )

    async def _balance(self) -> None:
        balance = self._settings.balance
        while True:
            await asyncio.sleep(balance.interval_s)
            moved = await self._decisions.make(
                lambda image: leadership.balance_leaders_steps(
                    image, self._policy(image), percentage=balance.percentage
                )
            )
            if moved:
                log.info("preferred leaders elected", moved=moved)

    def _policy(self, image: ClusterImage) -> Policy:
        return self._policy_with(image.broker_configs)

    def _policy_with(self, configs: BrokerConfigs) -> Policy:
        made = self._settings.make_policy(configs)
        return made._replace(controller_epoch=self.controller_epoch)

    def _rules(self, defaults: TopicDefaults) -> Rules:
        return Rules(defaults, self._settings.check_configs, self._settings.randomness)

    # -- topics ----------------------------------------------------------------------------

    async def create_topics(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        defaults: TopicDefaults = NO_DEFAULTS,
    ) -> list[TopicImage | OperatingError]:
        def decide(image: ClusterImage) -> StepGenerator[Plan[list[TopicImage | OperatingError]]]:
            rules = self._rules(defaults)
            return topics_plans.create_topics_steps(image, wanted, rules, self._policy(image))

        return await self._decisions.make(_only_if(decide, not validate_only))

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[OperatingError | None]:
        return await self._decisions.make(
            lambda image: topics_plans.delete_topics_steps(image, topics)
        )

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[OperatingError | None]:
        def decide(image: ClusterImage) -> StepGenerator[Plan[list[OperatingError | None]]]:
            rules = self._rules(NO_DEFAULTS)
            return topics_plans.create_partitions_steps(image, wanted, rules, self._policy(image))

        return await self._decisions.make(_only_if(decide, not validate_only))

    async def alter_topic_configs(
        self, topic: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        def decide(image: ClusterImage) -> Plan[list[UncleanElection]]:
            return topics_plans.alter_topic_configs(
                image,
                topic,
                configs,
                self._policy(image),
                check_configs=self._settings.check_configs,
            )

        unclean = await self._decisions.make(_only_if(decide, not validate_only))
        if not validate_only:
            self._report(unclean)

    async def alter_broker_configs(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        def decide(image: ClusterImage) -> Plan[list[UncleanElection]]:
            after = {**image.broker_configs, name: configs}
            policy = self._policy_with(after)
            return topics_plans.alter_broker_configs(image, name, configs, policy)

        unclean = await self._decisions.make(_only_if(decide, not validate_only))
        if not validate_only:
            self._report(unclean)

    # -- partitions ------------------------------------------------------------------------

    async def alter_partitions(
        self, changes: Sequence[IsrChange], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[PartitionImage | OperatingError]:
        return await self._decisions.make(
            lambda image: isr_changes.plan_isr_changes_steps(
                image,
                changes,
                self._policy(image),
                broker_id=broker_id,
                broker_epoch=broker_epoch,
            )
        )

    async def lose_replicas(
        self, lost: Sequence[LostReplica], *, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> list[OperatingError | None]:
        results = await self._decisions.make(
            lambda image: lost_replicas.plan_lost_replicas_steps(
                image,
                lost,
                self._policy(image),
                broker_id=broker_id,
                broker_epoch=broker_epoch,
            )
        )
        if results.marked:
            log.warning(
                "broker reported offline replicas", broker=broker_id, partitions=results.marked
            )
        self._report(results.unclean_elections)
        return results.errors

    async def note_room(
        self,
        replicas: Sequence[ReplicaName],
        *,
        is_full: bool,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
    ) -> list[OperatingError | None]:
        results = await self._decisions.make(
            lambda image: full_replicas.plan_full_replicas_steps(
                image,
                replicas,
                self._policy(image),
                broker_id=broker_id,
                broker_epoch=broker_epoch,
                is_full=is_full,
            )
        )
        if results.marked or results.moved:
            text = "broker reported full replicas" if is_full else "broker reported usable replicas"
            (log.warning if is_full else log.info)(
                text, broker=broker_id, partitions=results.marked, leaders_moved=results.moved
            )
        return results.errors

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, OperatingError | None]:
        results = await self._decisions.make(
            lambda image: leadership.plan_elections_steps(
                image, kind, partitions, self._policy(image)
            )
        )
        self._report(results.unclean_elections)
        return results.errors

    async def reassign_partitions(
        self,
        wanted: Mapping[TopicPartition, tuple[BrokerId, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, OperatingError | None]:
        results = await self._decisions.make(
            lambda image: moves.plan_reassignments_steps(
                image, wanted, self._policy(image), may_change_factor=may_change_factor
            )
        )
        self._report(results.unclean_elections)
        return results.errors

    def reassignments(self, partitions: Sequence[TopicPartition] | None) -> list[Reassignment]:
        return moves.reassignments(self.image, partitions)

    # -- brokers ---------------------------------------------------------------------------

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        unclean = await self._decisions.make(
            lambda image: brokers.unregister_broker(image, broker_id, self._policy(image))
        )
        self._report(unclean)

    async def shut_down(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        left = await self._decisions.make(
            lambda image: leadership.plan_shutdown_steps(
                image, self._policy(image), broker_id=broker_id, broker_epoch=broker_epoch
            )
        )
        return not left

    async def changes_since(self, position: FeedPosition, *, wait_s: float) -> MetadataDelta:
        return await self._decisions.changes_since(position, wait_s=wait_s)


def _first_version(image: ClusterImage, controller_epoch: int) -> ClusterImage:
    """Above every version of earlier controllers: a version never goes back."""
    return ClusterImage(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=image.brokers,
        topics=image.topics,
        broker_configs=image.broker_configs,
        version=controller_epoch << VERSION_BITS,
        topics_by_id=image.topics_by_id,
    )


def _only_if(decide: Decide[T], is_real: bool) -> Decide[T]:  # noqa: FBT001 - read as a sentence
    """The decision itself, or with False one that only returns its result."""
    if is_real:
        return decide

    def validate(image: ClusterImage) -> StepGenerator[Plan[T]]:
        decided = decide(image)
        plan = decided if isinstance(decided, Plan) else (yield from decided)
        return Plan(plan.result, image)

    return validate
