"""Power loss at any moment: a topic exists whole or not at all, and what was promised is kept.

Each story runs once on a recording disk. Then the controller is started on every state that a
power loss could have left, and once more after that.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from kits.controller.controller_kit import create, made, new_disk, run, started
from millstream.controller.image import TopicImage
from millstream.controller.standalone.controller import StandaloneController
from millstream.controller.store import MetadataStore
from millstream.controller.topics import MorePartitions
from millstream.model.ids import TopicId
from millstream.testing.sim.crash_states import crash_states
from millstream.testing.sim.disk import SimDisk

STATES = 700

Form = tuple[TopicId, int, tuple[tuple[str, str], ...]]
"""All that a start may give back of a topic: its id, how many partitions, its settings."""


@dataclass(frozen=True)
class Promise:
    """What may be found from now on: for each topic any of some forms, None for its absence."""

    forms: dict[str, frozenset[Form | None]] = field(default_factory=dict)
    deleted: frozenset[TopicId] = frozenset()
    """Surely deleted: never alive again."""
    producer_ids_below: int = 0
    """Handed out: never again."""
    cluster_id: str | None = None


class Story:
    """A controller on a recording disk, and the promises made along the way."""

    def __init__(self) -> None:
        self.disk = new_disk()
        self.recording = self.disk.record()
        self.controller = started(self.disk)
        self.promise = Promise(cluster_id=self.controller.image.cluster_id)
        self.keep()

    def keep(self) -> None:
        """What is so now is promised."""
        topics = self.controller.image.topics
        forms = {name: frozenset({form_of(topics.get(name))}) for name in self.names | set(topics)}
        gone = frozenset(one.topic_id for one in self.controller.deleted_topics)
        deleted = self.promise.deleted | gone
        self.promise = Promise(
            forms, deleted, self.promise.producer_ids_below, self.promise.cluster_id
        )
        self.disk.mark(self.promise)

    @property
    def names(self) -> set[str]:
        return set(self.promise.forms)

    def run(self, work: Callable[[StandaloneController], Awaitable[Any]], may: "Forms") -> None:
        """Run the change; while it is under way each topic may be as before or as `may` says."""
        old = self.promise.forms
        under_way = {
            name: old.get(name, frozenset({None})) | may.get(name, frozenset())
            for name in set(old) | set(may)
        }
        self.disk.mark(
            Promise(
                under_way,
                self.promise.deleted,
                self.promise.producer_ids_below,
                self.promise.cluster_id,
            )
        )

        async def change() -> None:
            await work(self.controller)

        run(change)
        self.keep()

    def create(self, *names: str, partitions: int = 2) -> None:
        # The ids are drawn inside: any form is one of these, so the check goes by the file.
        anything: Forms = {name: frozenset({ANY}) for name in names}
        self.run(lambda one: create(one, *names, partitions=partitions), anything)

    def delete(self, *names: str) -> None:
        self.run(lambda one: one.delete_topics(names), {name: frozenset({None}) for name in names})

    def grow(self, name: str, count: int) -> None:
        topic_id, _, configs = known(self.controller, name)
        more = [MorePartitions(name=name, total_count=count)]
        grown: Form = (topic_id, count, configs)
        self.run(lambda one: one.create_partitions(more), {name: frozenset({grown})})

    def configure(self, name: str, value: str) -> None:
        topic_id, count, _ = known(self.controller, name)
        changed: Form = (topic_id, count, (("a", value),))
        self.run(
            lambda one: one.alter_topic_configs(name, {"a": value}), {name: frozenset({changed})}
        )

    def allocate(self) -> None:
        async def take() -> range:
            return await self.controller.allocate_producer_id_block()

        block = run(take)
        self.promise = Promise(
            self.promise.forms, self.promise.deleted, block.stop, self.promise.cluster_id
        )
        self.disk.mark(self.promise)

    def restart(self) -> None:
        self.controller.close()
        self.controller = started(self.disk, seed=5)
        self.keep()


Forms = dict[str, frozenset[Form | None]]
ANY: Form = (TopicId(UUID(int=1)), 0, ())
"""Stands for a new topic, whose id is drawn inside the change."""


def form_of(topic: TopicImage | None) -> Form | None:
    if topic is None:
        return None
    return topic.topic_id, len(topic.partitions), tuple(sorted(topic.configs.items()))


def known(controller: StandaloneController, name: str) -> Form:
    form = form_of(controller.image.topics[name])
    assert form is not None
    return form


# -- stories -----------------------------------------------------------------------------------


def creations(story: Story) -> None:
    story.create("a")
    story.create("b", "c", partitions=3)
    story.restart()
    story.create("d")


def deletion_and_new_creation(story: Story) -> None:
    story.create("a", "b")
    story.delete("a")
    story.create("a", partitions=1)
    story.delete("a", "b")
    story.restart()
    story.create("b")


def growth_and_settings(story: Story) -> None:
    story.create("a")
    story.grow("a", 5)
    story.configure("a", "1")
    story.restart()
    story.configure("a", "2")
    story.grow("a", 6)


def producer_ids(story: Story) -> None:
    story.allocate()
    story.allocate()
    story.restart()
    story.allocate()


STORIES = [creations, deletion_and_new_creation, growth_and_settings, producer_ids]


def first_broken_promise(tell: Callable[[Story], None]) -> str | None:
    story = Story()
    tell(story)
    count = 0
    for state in crash_states(story.recording, limit=STATES, seed=3):
        count += 1
        promises = [one for one in state.marks_before if isinstance(one, Promise)]
        problem = broken(state.disk, promises[-1] if promises else Promise())
        if problem:
            return f"{problem} ({state.description})"
    assert count > 50, f"only {count} states: the story tells too little"
    return None


def broken(disk: SimDisk, promise: Promise) -> str | None:
    """What a start on this disk got wrong, or None."""
    controller = made(disk, seed=7)
    controller.start()
    topics = dict(controller.image.topics)
    if promise.cluster_id is not None and controller.image.cluster_id != promise.cluster_id:
        return f"the cluster is {controller.image.cluster_id}, it was {promise.cluster_id}"
    for name in set(promise.forms) | set(topics):
        allowed = promise.forms.get(name, frozenset({None}))
        found = form_of(topics.get(name))
        if found not in allowed and not (ANY in allowed and found is not None):
            return f"{name} is {found}, promised was one of {allowed}"
    alive = {topic.topic_id for topic in topics.values()}
    if alive & promise.deleted:
        return "a deleted topic is back"
    noted = {topic.topic_id for topic in controller.deleted_topics}
    if promise.deleted - noted:
        return "a deletion was forgotten while its logs may be there"

    async def take() -> range:
        return await controller.allocate_producer_id_block()

    if run(take).start < promise.producer_ids_below:
        return "producer ids were given twice"
    epochs = {name: one.partitions[0].leader_epoch for name, one in topics.items()}
    controller.close()
    again = made(disk, seed=8)
    again.start()
    after = {name: one.partitions[0].leader_epoch for name, one in again.image.topics.items()}
    if {name: epoch + 1 for name, epoch in epochs.items()} != after:
        return f"epochs {epochs} became {after}"
    return None


@pytest.mark.parametrize("tell", STORIES, ids=lambda story: story.__name__)
def test_no_crash_state_breaks_a_promise(tell: Callable[[Story], None]) -> None:
    assert first_broken_promise(tell) is None


# -- the bugs that these tests are for ---------------------------------------------------------


def test_explorer_catches_names_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "sync_directory", lambda disk, path: None)
    assert first_broken_promise(creations) is not None


def test_explorer_catches_content_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "sync_many", lambda disk, files, directories: None)
    with pytest.raises(BaseException, match="damaged metadata"):
        first_broken_promise(creations)


def test_explorer_catches_a_deletion_without_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = MetadataStore.apply

    def forgetting(store: MetadataStore, changes: Any) -> None:
        genuine(store, changes)
        for _, target in changes.rename:
            store._disk.remove(f"{store.directory}/{target}")
            store._disk.sync_directory(store.directory)

    monkeypatch.setattr(MetadataStore, "apply", forgetting)
    problem = first_broken_promise(deletion_and_new_creation)
    assert problem is not None
    assert "forgotten" in problem
