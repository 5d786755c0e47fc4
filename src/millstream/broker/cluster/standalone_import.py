"""Imports the metadata of a broker that was standalone into a cluster.

It is in files of the broker's log directories. All of it must be there and match the logs: in a
cluster unknown logs are deleted, so in any doubt the broker refuses to join.
"""

from collections.abc import Iterable, Sequence

from millstream.controller.cluster.standalone_bootstrap import StandaloneState
from millstream.controller.errors import DirectoryNotOfThisCluster
from millstream.controller.standalone.controller import StandaloneController
from millstream.model.ids import BrokerId, TopicId, TopicPartition
from millstream.runtime.background import Background
from millstream.runtime.disk import Disk
from millstream.runtime.randomness import Randomness
from millstream.storage.manager.log_manager import LogManager, StartReport


class StandaloneImport:
    """Constructed, `read`, then `check`ed against the logs."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        *,
        broker_id: BrokerId,
        background: Background,
        randomness: Randomness,
    ) -> None:
        self._directories = list(directories)
        self._controller = StandaloneController(
            disk=disk,
            background=background,
            randomness=randomness,
            directories=directories,
            broker_id=broker_id,
        )
        self._broker_id = broker_id
        self.was_clean = False
        """Whether its last stop was clean; known after `check`."""

    def read(self) -> None:
        """Raises errors of the metadata, NotOfThisCluster if it is incomplete."""
        controller = self._controller
        controller.load()
        controller.close()  # the directories have locks of their own
        for missing in controller.directory_plan.withheld:
            raise DirectoryNotOfThisCluster(
                self._directories[0], f"a log directory of its broker is missing: {missing.reason}"
            )

    @property
    def deleted(self) -> set[TopicId]:
        """Deleted topics that may have left logs."""
        return {topic.topic_id for topic in self._controller.deleted_topics}

    def topic_configs(self, name: str) -> dict[str, str]:
        topic = self._controller.image.topics.get(name)
        return dict(topic.configs) if topic is not None else {}

    def check(self, logs: LogManager, report: StartReport) -> None:
        """Raise NotOfThisCluster unless every log is known and usable."""
        first = self._directories[0]
        for problems in (report.failed_directories, report.unusable_partitions):
            for what, why in problems.items():
                raise DirectoryNotOfThisCluster(first, f"{what} cannot be used ({why})")
        unknown = list(self._unknown((one.partition, one.context.topic_id) for one in logs))
        if unknown:
            raise DirectoryNotOfThisCluster(
                first, f"{len(unknown)} logs in it belong to no topic of its broker"
            )
        self.was_clean = not report.unclean_directories

    def _unknown(
        self, found: Iterable[tuple[TopicPartition, TopicId | None]]
    ) -> Iterable[TopicPartition]:
        topics, deleted = self._controller.image.topics, self.deleted
        for partition, topic_id in found:
            topic = topics.get(partition.topic)
            if topic_id in deleted:
                continue
            is_known = topic is not None and partition.partition < len(topic.partitions)
            if topic is None or not is_known or topic_id not in (None, topic.topic_id):
                yield partition

    @property
    def state(self) -> StandaloneState:
        image = self._controller.image
        return StandaloneState(
            self._broker_id,
            image.cluster_id,
            list(image.topics.values()),
            image.broker_configs,
            self._controller.next_producer_id,
        )
