"""The controller of a standalone broker: decisions as in a cluster, stored in its own files.

Changes run one after the other: each is decided on the image that the last one left, made durable
off the loop, and only then becomes the image, is passed to the subscribers, and is answered.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from millstream.controller import documents, identity
from millstream.controller.documents import BrokerConfigs, BrokerState, KnownDirectory
from millstream.controller.errors import (
    DamagedMetadata,
    InvalidRequest,
    UnknownTopic,
    WrongBrokerId,
)
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    GrownTopic,
    ImageChange,
    TopicImage,
    is_config_name,
)
from millstream.controller.known_directories import (
    DirectoryFacts,
    DirectoryPlan,
    missing_partitions,
    plan_directories,
)
from millstream.controller.standalone.adoption import Adopter, Adoption, FoundPartition
from millstream.controller.standalone.changes import ChangeQueue, Decision, NextImage
from millstream.controller.store import (
    BROKER,
    DELETED,
    PRODUCER_IDS,
    Content,
    FileChanges,
    MetadataStore,
    broker_configs_file,
    directory_file,
    topic_file,
)
from millstream.controller.subscribers import Subscriber, Subscribers
from millstream.controller.topics import (
    CheckConfigs,
    MorePartitions,
    NewTopic,
    Rules,
    TopicDefaults,
    plan_creation_steps,
    plan_growth_steps,
)
from millstream.model.errors import OperatingError, UnknownTopicId
from millstream.model.ids import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import PRODUCER_ID_BLOCK
from millstream.runtime.background import Background
from millstream.runtime.disk import Disk
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator, chunked

T = TypeVar("T")

METADATA_DIRECTORY: Final = "metadata"
"""Inside the first log directory."""


class StandaloneController:
    """One broker's metadata. Call `load`, then `open`; all methods run on the loop's thread."""

    def __init__(
        self,
        *,
        disk: Disk,
        background: Background,
        randomness: Randomness,
        directories: Sequence[str],
        broker_id: BrokerId,
        check_configs: CheckConfigs | None = None,
        scheduler: CooperativeScheduler | None = None,
        on_full: Callable[[str], None] | None = None,
    ) -> None:
        """With `scheduler` the steps of changes alternate with those of requests. `on_full` is
        called, on any thread, with the directory that had no space for a change.
        """
        self._disk = disk
        self._randomness = randomness
        self._directories = list(directories)
        self.broker_id = broker_id
        metadata = _find_metadata(disk, self._directories)
        self._metadata_directory = metadata.removesuffix(f"/{METADATA_DIRECTORY}")
        """The log directory with the metadata."""
        self._store = MetadataStore(disk, metadata, on_full=on_full)
        self._check_configs = check_configs or _check_topic_configs
        self._found: dict[str, identity.MetaProperties] = {}
        self._known: set[KnownDirectory] = set()
        self.directory_plan = DirectoryPlan()
        """Once loaded: the log directories that must stay offline, and those that are forgotten."""
        self._starts = 0
        self._next_producer_id = 0
        self._deleted: dict[TopicId, TopicImage] = {}
        self._image: ClusterImage | None = None
        self._subscribers = Subscribers()
        self._changes = ChangeQueue(
            self._store, scheduler or CooperativeScheduler(background), self._apply_steps
        )
        self.directory_ids: Mapping[str, UUID] = {}
        """By log directory, once open; those that could not be read are missing."""

    # -- start and stop --------------------------------------------------------------------

    def load(self, *, cluster_id: str | None = None) -> None:
        """Lock and read the metadata; then `image` is available. Nothing is changed.

        Raises WrongBrokerId, DirectoryOfCluster, InconsistentClusterId, DuplicateDirectoryId,
        MetadataMissing, DamagedMetadata, LogDirectoryLocked or StorageFailed; nothing stays locked.
        `cluster_id` is for a directory without one.
        """
        self._found = identity.read_meta_properties(self._disk, self._directories)
        identity.check_broker_id(self._found, self.broker_id)
        identity.check_standalone(self._disk, self._found)
        if not _has_metadata(self._disk, self._store.directory):
            identity.check_metadata_present(
                identity.read_metadata_locations(self._disk, self._found)
            )
        known = identity.agreed_cluster_id(self._found, None)
        identity.check_directory_ids(self._found)
        self._store.open()
        try:
            self._load(known, cluster_id)
        except BaseException:
            self._store.close()
            raise

    def _load(self, known: str | None, wanted: str | None) -> None:
        state = self._store.read_state()
        if state is not None:
            if state.broker_id != self.broker_id:
                path = f"{self._store.directory}/{BROKER}"
                raise WrongBrokerId(path=path, ours=self.broker_id, theirs=state.broker_id)
            known = identity.agreed_cluster_id(self._found, state.cluster_id)
        self._starts = state.starts + 1 if state is not None else 1
        stored = self._store.load(starts=self._starts)
        self._next_producer_id = stored.next_producer_id
        self._deleted = {topic.topic_id: topic for topic in stored.deleted}
        self._image = ClusterImage(
            cluster_id=known or wanted or identity.new_cluster_id(self._randomness),
            controller_id=self.broker_id,
            brokers={self.broker_id: BrokerImage(self.broker_id)},
            topics={topic.name: topic for topic in stored.topics},
            broker_configs=stored.broker_configs,
        )
        self._known = set(stored.directories)
        self.directory_plan = self._plan_directories()

    def _plan_directories(self) -> DirectoryPlan:
        for one in self._known:
            properties = self._found.get(one.path)
            if (
                properties is not None
                and properties.directory_id is None
                and one.path == self._metadata_directory
            ):
                # It has the metadata, so it is certainly the directory that lost its file.
                self._found[one.path] = properties._replace(directory_id=one.directory_id)
        facts = DirectoryFacts(
            self._directories,
            self._found,
            lambda: len(missing_partitions(self._disk, self._found, self.image)),
            lambda one: self._store.path_of(directory_file(one)),
        )
        return plan_directories(sorted(self._known), facts)

    def open(self) -> None:
        """Claim the log directories and count this start; then changes are accepted.

        To be called before clients connect: from here on every leader epoch is one higher than in
        the last run.
        """
        image = self.image
        state = BrokerState(self.broker_id, image.cluster_id, self._starts)
        plan = self.directory_plan
        here = {
            path: properties
            for path, properties in self._found.items()
            if not plan.is_withheld(path)
        }
        self.directory_ids = identity.directory_ids_of(here, self._randomness)
        known = {KnownDirectory(one, path) for path, one in self.directory_ids.items()}
        files = {directory_file(one): documents.encode_directory(one) for one in known}
        is_new = {directory_file(one) for one in known - self._known}
        # The ids are written to our own metadata first: after a crash the directories are completed
        # from there and do not get the ids of a second cluster; and no partition is ever created in
        # a directory that would not be missed.
        changes = FileChanges(
            write={
                BROKER: documents.encode_state(state),
                **{name: content for name, content in sorted(files.items()) if name in is_new},
            },
            remove=[directory_file(one) for one in plan.forgotten],
        )
        self._store.apply(changes)
        try:
            self._complete_directories(here)
        except OSError as error:
            raise self._store.failed(error) from error

    def _complete_directories(self, here: Mapping[str, identity.MetaProperties]) -> None:
        identity.write_meta_properties(
            self._disk,
            here,
            broker_id=self.broker_id,
            cluster_id=self.image.cluster_id,
            directory_ids=self.directory_ids,
        )
        metadata = self.directory_ids.get(self._metadata_directory)
        if metadata is not None:
            known = KnownDirectory(metadata, self._metadata_directory)
            identity.write_metadata_location(self._disk, here, known)

    def start(self, *, cluster_id: str | None = None) -> None:
        """`load` and `open` in one call, where nothing has to happen between them."""
        self.load(cluster_id=cluster_id)
        self.open()

    def leave_out(self, directories: Container[str]) -> None:
        """Exclude log directories that turned out to be unusable from being claimed; call before
        `open`.
        """
        self._found = {path: one for path, one in self._found.items() if path not in directories}

    def close(self) -> None:
        """Release the lock. Background work must have ended."""
        self._store.close()

    # -- state -----------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The current image of the cluster."""
        image = self._image
        if image is None:  # no invariant(): this runs with every request
            raise InvariantViolated("the controller is used before it was loaded")
        return image

    @property
    def deciding_image(self) -> ClusterImage:
        """The image that the next change is decided on; here the same."""
        return self.image

    @property
    def next_producer_id(self) -> int:
        """The first id that was never handed out."""
        return self._next_producer_id

    @property
    def is_first_start(self) -> bool:
        """Whether this broker was never started before."""
        return self._starts == 1

    @property
    def deleted_topics(self) -> list[TopicImage]:
        """Deleted topics of which some logs may still be in a directory."""
        return list(self._deleted.values())

    def subscribe(self, callback: Subscriber, *, prepare: Subscriber | None = None) -> None:
        """Call it on the loop after each durable change, before the change is answered.

        `prepare` is called before the change is visible in the image: what clients look for as soon
        as they see the change must be there. If one of them raises, the change stands and its
        caller gets the error.
        """
        self._subscribers.add(callback, prepare=prepare)

    def register(self, broker: BrokerImage) -> None:
        """Set this broker's endpoints, as soon as its ports are open."""
        image = self.image
        self._image = image.changed(brokers={**image.brokers, broker.broker_id: broker})

    def adopt(
        self,
        found: Mapping[TopicPartition, TopicId | None],
        *,
        leader_epochs: Mapping[TopicPartition, LeaderEpoch] | None = None,
        is_complete: bool = False,
    ) -> Adoption:
        """Adopt the partitions of a data directory of Apache Kafka; durable on return.

        `found` has all partitions in the log directories, with their topic ids, and `leader_epochs`
        the last ones in their logs. With `is_complete` every directory could be read, so deleted
        topics of which nothing was found are gone for good. The caller removes the logs in
        `to_delete` of the outcome. Call at start, before anything subscribes.
        """
        adopter = Adopter(
            self.image,
            self.deleted_topics,
            broker_id=self.broker_id,
            randomness=self._randomness,
        )
        epochs = leader_epochs or {}
        by_topic: dict[str, list[FoundPartition]] = {}
        for partition, topic_id in sorted(found.items(), key=lambda item: item[0]):
            epoch = epochs.get(partition, NO_LEADER_EPOCH)
            finding = FoundPartition(partition.partition, topic_id, epoch)
            by_topic.setdefault(partition.topic, []).append(finding)
        for name, findings in by_topic.items():
            adopter.take(name, findings)
        outcome = adopter.outcome
        forgotten = self._no_longer_found(found) if is_complete else []
        put = [*outcome.adopted, *outcome.changed]
        if put or forgotten:
            gone = [topic_file(topic, DELETED) for topic in forgotten]
            self._store.apply(FileChanges(write=self._topic_files(put), remove=gone))
            self._image = self.image.changed(put=put)
            for topic in forgotten:
                del self._deleted[topic.topic_id]
        return outcome

    def _no_longer_found(self, found: Mapping[TopicPartition, TopicId | None]) -> list[TopicImage]:
        ids = set(found.values())
        nameless = {partition.topic for partition, topic_id in found.items() if topic_id is None}
        return [
            topic
            for topic in self._deleted.values()
            if topic.topic_id not in ids and topic.name not in nameless
        ]

    # -- changes ---------------------------------------------------------------------------

    async def create_topics(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
    ) -> list[TopicImage | OperatingError]:
        """Each created topic, or why it was refused; raises for the request as a whole.

        With `validate_only` nothing is changed and the topics are as they would have been created.
        """

        def decide() -> StepGenerator[Decision[list[TopicImage | OperatingError]]]:
            planned = yield from plan_creation_steps(self.image, wanted, self._rules(defaults))
            created = [one for one in planned if isinstance(one, TopicImage)]
            if validate_only or not created:
                return Decision(planned)
            files = FileChanges(write=self._topic_files(created))
            image = self.image.changed(put=created)
            following = NextImage(image, ImageChange(created=created))
            return Decision(planned, files, following)

        return await self._changes.run(decide, name="create topics")

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[OperatingError | None]:
        """Each by name, or by id where a new topic of the same name must not be deleted."""

        def decide() -> StepGenerator[Decision[list[OperatingError | None]]]:
            deleted: dict[TopicId, TopicImage] = {}
            results: list[OperatingError | None] = []
            for part in chunked(topics):
                for one in part:
                    topic = self._find(one)
                    if topic is None or topic.topic_id in deleted:
                        unknown = UnknownTopic(one) if isinstance(one, str) else UnknownTopicId(one)
                        results.append(unknown)
                    else:
                        deleted[topic.topic_id] = topic
                        results.append(None)
                if len(results) < len(topics):
                    yield None
            if not deleted:
                return Decision(results)
            gone = list(deleted.values())
            renames = [(topic_file(one), topic_file(one, DELETED)) for one in gone]
            image = self.image.changed(drop=gone)
            after = partial(self._deleted.update, deleted)
            following = NextImage(image, ImageChange(deleted=gone))
            return Decision(results, FileChanges(rename=renames), following, after)

        return await self._changes.run(decide, name="delete topics")

    async def forget_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        """Call when their logs are gone from every directory, also from those that are offline."""

        def decide() -> Decision[None]:
            known = {one: self._deleted[one] for one in topic_ids if one in self._deleted}
            if not known:
                return Decision(None)
            names = [topic_file(topic, DELETED) for topic in known.values()]

            def forget() -> None:
                for topic_id in known:
                    del self._deleted[topic_id]

            return Decision(None, FileChanges(remove=names), None, forget)

        await self._changes.run(decide, name="forget deleted topics")

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[OperatingError | None]:
        """Add partitions to topics; raises for the request as a whole."""

        def decide() -> StepGenerator[Decision[list[OperatingError | None]]]:
            planned = yield from plan_growth_steps(self.image, wanted, self._rules(TopicDefaults()))
            results = [one if isinstance(one, OperatingError) else None for one in planned]
            grown = [one for one in planned if isinstance(one, GrownTopic)]
            if validate_only or not grown:
                return Decision(results)
            topics = [one.topic for one in grown]
            files = FileChanges(write=self._topic_files(topics))
            image = self.image.changed(put=topics)
            return Decision(results, files, NextImage(image, ImageChange(grown=grown)))

        return await self._changes.run(decide, name="create partitions")

    async def alter_topic_configs(
        self, topic: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace all settings of a topic; raises UnknownTopic, or why a setting is invalid."""

        def decide() -> Decision[None]:
            old = self.image.topics.get(topic)
            if old is None:
                raise UnknownTopic(topic)
            self._check_configs(configs)
            if validate_only or old.configs == configs:
                return Decision(None)
            new = old._replace(configs=dict(configs))
            files = FileChanges(write=self._topic_files([new]))
            image = self.image.changed(put=[new])
            return Decision(None, files, NextImage(image, ImageChange(reconfigured=[new])))

        await self._changes.run(decide, name=f"configure topic {topic}")

    async def alter_broker_configs(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Replace all dynamic settings of a broker, or of all brokers with the name ""."""

        def decide() -> Decision[None]:
            if not is_config_name(name):
                raise InvalidRequest(f"{name!r} is no broker id")
            old = self.image.broker_configs
            if validate_only or dict(old.get(name, {})) == configs:
                return Decision(None)
            stored = documents.encode_broker_configs(BrokerConfigs(name, configs))
            new = {key: value for key, value in old.items() if key != name}
            if configs:
                new[name] = dict(configs)
            files = FileChanges(write={broker_configs_file(name): stored})
            image = self.image.changed(broker_configs=new)
            following = NextImage(image, ImageChange(brokers_reconfigured=True))
            return Decision(None, files, following)

        await self._changes.run(decide, name=f"configure broker {name or '(all)'}")

    async def allocate_producer_id_block(self) -> range:
        """Ids that no producer got before or will get again, across restarts (I-20)."""

        def decide() -> Decision[range]:
            block = range(self._next_producer_id, self._next_producer_id + PRODUCER_ID_BLOCK)
            stored = documents.encode_producer_ids(block.stop)

            def spend() -> None:
                self._next_producer_id = block.stop

            files = FileChanges(write={PRODUCER_IDS: stored})
            return Decision(block, files, None, spend)

        return await self._changes.run(decide, name="allocate producer ids")

    async def run_between(self, steps: Callable[[], StepGenerator[T]], *, name: str) -> T:
        """Run steps while no change is under way."""
        return await self._changes.run_between(steps, name=name)

    # -- inside ----------------------------------------------------------------------------

    def _find(self, one: str | TopicId) -> TopicImage | None:
        image = self.image
        return image.topics.get(one) if isinstance(one, str) else image.topics_by_id.get(one)

    def _rules(self, defaults: TopicDefaults) -> Rules:
        return Rules(defaults, self._check_configs, self._randomness)

    def _topic_files(self, topics: Iterable[TopicImage]) -> dict[str, Content]:
        """Encoded by the job that writes them: a topic may have thousands of partitions."""
        starts = self._starts
        return {
            topic_file(one): partial(documents.encode_topic, one, starts=starts) for one in topics
        }

    def _apply_steps(self, following: NextImage) -> StepGenerator[None]:
        """The change is durable: it stands from now on, even if subscribers fail."""
        failure = yield from self._subscribers.prepare_steps(following.change)
        image = following.image
        if image.brokers is not self.image.brokers:
            image = image.changed(brokers=self.image.brokers)  # registered meanwhile
        self._image = image
        second = yield from self._subscribers.notify_steps(following.change)
        if failure is not None or second is not None:
            raise failure or second  # type: ignore[misc]


def _find_metadata(disk: Disk, directories: Sequence[str]) -> str:
    """The metadata directory, in whichever log directory it is; in the first where there is none.

    Raises DamagedMetadata for two: each is a history of its own, and choosing one would lose the
    other.
    """
    directories = [f"{one}/{METADATA_DIRECTORY}" for one in directories]
    found = []
    for directory in directories:
        with suppress(OSError):  # a failed directory is reported later
            if disk.exists(f"{directory}/{BROKER}"):
                found.append(directory)
    if len(found) > 1:
        raise DamagedMetadata({found[1]: f"there is metadata in {found[0]} too"})
    return found[0] if found else directories[0]


def _has_metadata(disk: Disk, directory: str) -> bool:
    try:
        return disk.exists(f"{directory}/{BROKER}")
    except OSError:
        return True  # opening it will raise why it cannot be used


def _check_topic_configs(configs: Mapping[str, str]) -> None:
    from millstream.model.config import validate_topic_configs

    validate_topic_configs(configs)
