"""Creating, growing, configuring and deleting topics; the rules are those of `controller.topics`.

A topic exists from the moment its node does: a controller that finds missing states creates them.
It is gone from the moment its name is among the deletions: a controller that finds nodes of it
deletes them.
"""

from collections.abc import Iterator, Mapping, Sequence

from millstream.controller.cluster import nodes
from millstream.controller.cluster.brokers import elect_leaderless_steps
from millstream.controller.cluster.drafts import TOPIC_NODE_BYTES_MAX, Draft
from millstream.controller.cluster.elections import (
    Electorate,
    TopicRules,
    UncleanElection,
    elect_leaderless,
    eligible,
)
from millstream.controller.cluster.plans import Group, Plan, Policy
from millstream.controller.cluster.targets import target
from millstream.controller.errors import InvalidPartitionCount, InvalidRequest, UnknownTopic
from millstream.controller.image import (
    NO_LEADER,
    ClusterImage,
    GrownTopic,
    ImageChange,
    PartitionImage,
    TopicImage,
    is_config_name,
)
from millstream.controller.topics import (
    CheckConfigs,
    MorePartitions,
    NewTopic,
    Rules,
    plan_creation_steps,
    plan_growth_steps,
)
from millstream.coordination.port import ANY_VERSION, Create, Delete, Operation, Set
from millstream.model.errors import OperatingError, UnknownTopicId
from millstream.model.ids import TopicId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

# -- creation ----------------------------------------------------------------------------------


def create_topics(
    image: ClusterImage, wanted: Sequence[NewTopic], rules: Rules, policy: Policy
) -> Plan[list[TopicImage | OperatingError]]:
    """Each created topic, or why it was refused; raises for the request as a whole.

    To validate only, use the result and drop the rest of the plan.
    """
    return run_blocking(create_topics_steps(image, wanted, rules, policy))


def create_topics_steps(
    image: ClusterImage, wanted: Sequence[NewTopic], rules: Rules, policy: Policy
) -> StepGenerator[Plan[list[TopicImage | OperatingError]]]:
    """`create_topics` in steps."""
    planned = yield from plan_creation_steps(_usable(image), wanted, rules)
    results: list[TopicImage | OperatingError] = []
    created: list[TopicImage] = []
    groups: list[Group] = []
    pace = YieldCounter()
    for one in planned:
        topic = one if isinstance(one, OperatingError) else _fitting(one)
        results.append(topic)
        if isinstance(topic, OperatingError):
            continue
        created.append(topic)
        groups.append(creation_of(topic))
        for partition in topic.partitions:
            groups.append(creation_of_state(topic, partition, policy))
            if pace.is_due():
                yield None
    if not created:
        return Plan(results, image)
    return Plan(results, image.changed(put=created), groups, ImageChange(created=created))


def _usable(image: ClusterImage) -> ClusterImage:
    """The image with brokers in shutdown as fenced, so that they get nothing new."""
    if not any(one.is_leaving for one in image.brokers.values()):
        return image
    brokers = {
        broker_id: one._replace(is_fenced=one.is_fenced or one.is_leaving)
        for broker_id, one in image.brokers.items()
    }
    return image.changed(brokers=brokers)


def _fitting(topic: TopicImage) -> TopicImage | OperatingError:
    """The topic, or why it is too large: the coordination service limits the size of a node."""
    size = len(nodes.encode_topic(topic.topic_id, topic.partitions))
    if size <= TOPIC_NODE_BYTES_MAX:
        return topic
    return InvalidPartitionCount(
        f"{len(topic.partitions)} partitions: the assignment takes {size} bytes, and a topic's node"
        f" may have {TOPIC_NODE_BYTES_MAX}"
    )


def creation_of(topic: TopicImage) -> Group:
    """The nodes of a topic without its partitions."""
    return [
        Create(path=nodes.topic_configs_path(topic.name), data=nodes.encode_configs(topic.configs)),
        Create(
            path=nodes.topic_path(topic.name),
            data=nodes.encode_topic(topic.topic_id, topic.partitions),
        ),
        Create(path=nodes.partitions_path(topic.name)),
    ]


def creation_of_state(topic: TopicImage, partition: PartitionImage, policy: Policy) -> Group:
    """The nodes of one partition."""
    return [
        Create(path=nodes.partition_path(topic.name, partition.index)),
        Create(
            path=nodes.state_path(topic.name, partition.index),
            data=nodes.encode_state(partition, controller_epoch=policy.controller_epoch),
        ),
    ]


# -- growth ------------------------------------------------------------------------------------


def create_partitions(
    image: ClusterImage, wanted: Sequence[MorePartitions], rules: Rules, policy: Policy
) -> Plan[list[OperatingError | None]]:
    """Add partitions to topics; raises for the request as a whole."""
    return run_blocking(create_partitions_steps(image, wanted, rules, policy))


def create_partitions_steps(
    image: ClusterImage, wanted: Sequence[MorePartitions], rules: Rules, policy: Policy
) -> StepGenerator[Plan[list[OperatingError | None]]]:
    """`create_partitions` in steps."""
    planned = yield from plan_growth_steps(_without_reassignments(image, wanted), wanted, rules)
    results: list[OperatingError | None] = []
    grown: list[GrownTopic] = []
    for one in planned:
        fitting = one if isinstance(one, OperatingError) else _with_more(image, one)
        results.append(fitting if isinstance(fitting, OperatingError) else None)
        if isinstance(fitting, GrownTopic):
            grown.append(fitting)
    if not grown:
        return Plan(results, image)
    groups: list[Group] = []
    pace = YieldCounter()
    for topic, first in grown:
        data = nodes.encode_topic(topic.topic_id, topic.partitions)
        path = nodes.topic_path(topic.name)
        groups.append([Set(path=path, data=data, version=ANY_VERSION)])
        for partition in topic.partitions[first:]:
            groups.append(creation_of_state(topic, partition, policy))
            if pace.is_due():
                yield None
    following = image.changed(put=[one.topic for one in grown])
    return Plan(results, following, groups, ImageChange(grown=grown))


def _without_reassignments(image: ClusterImage, wanted: Sequence[MorePartitions]) -> ClusterImage:
    """The image with the replication factors that running reassignments lead to."""
    image = _usable(image)
    topics = [image.topics[more.name] for more in wanted if more.name in image.topics]
    put = [
        topic._replace(
            partitions=tuple([one._replace(replicas=target(one)) for one in topic.partitions])
        )
        for topic in topics
        if any(one.adding or one.removing for one in topic.partitions)
    ]
    return image.changed(put=put) if put else image


def _with_more(image: ClusterImage, grown: GrownTopic) -> GrownTopic | OperatingError:
    """The topic as it is, with the new partitions."""
    old = image.topics[grown.topic.name]
    added = grown.topic.partitions[grown.first_new_partition :]
    fitting = _fitting(old._replace(partitions=old.partitions + added))
    if isinstance(fitting, OperatingError):
        return fitting
    return GrownTopic(fitting, grown.first_new_partition)


# -- deletion ----------------------------------------------------------------------------------


def delete_topics(
    image: ClusterImage, topics: Sequence[str | TopicId]
) -> Plan[list[OperatingError | None]]:
    """Each by name, or by id where a new topic of the same name must not be deleted."""
    return run_blocking(delete_topics_steps(image, topics))


def delete_topics_steps(
    image: ClusterImage, topics: Sequence[str | TopicId]
) -> StepGenerator[Plan[list[OperatingError | None]]]:
    """`delete_topics` in steps."""
    results: list[OperatingError | None] = []
    gone: dict[TopicId, TopicImage] = {}
    # All deletion marks first: with its mark a topic is gone, even if the rest fails.
    groups: list[Group] = []
    pace = YieldCounter()
    for one in topics:
        topic = image.topics.get(one) if isinstance(one, str) else image.topics_by_id.get(one)
        if topic is None or topic.topic_id in gone:
            results.append(UnknownTopic(one) if isinstance(one, str) else UnknownTopicId(one))
        else:
            gone[topic.topic_id] = topic
            groups.append([Create(path=nodes.deletion_path(topic.name))])
            results.append(None)
        if pace.is_due():
            yield None
    if not gone:
        return Plan(results, image)
    deleted = list(gone.values())
    for topic in deleted:
        for group in _removal_of(topic):
            groups.append(group)
            if pace.is_due():
                yield None
    return Plan(results, image.changed(drop=deleted), groups, ImageChange(deleted=deleted))


def _removal_of(topic: TopicImage) -> Iterator[Group]:
    for one in topic.partitions:
        yield [
            Delete(path=nodes.state_path(topic.name, one.index), version=one.partition_epoch),
            Delete(path=nodes.partition_path(topic.name, one.index), version=ANY_VERSION),
        ]
    last = (
        nodes.partitions_path(topic.name),
        nodes.topic_path(topic.name),
        nodes.topic_configs_path(topic.name),
        nodes.deletion_path(topic.name),
    )
    yield [Delete(path=path, version=ANY_VERSION) for path in last]


# -- settings ----------------------------------------------------------------------------------


def alter_topic_configs(
    image: ClusterImage,
    name: str,
    configs: Mapping[str, str],
    policy: Policy,
    *,
    check_configs: CheckConfigs,
) -> Plan[list[UncleanElection]]:
    """Replace all settings of a topic; raises UnknownTopic, or why a setting is invalid."""
    old = image.topics.get(name)
    if old is None:
        raise UnknownTopic(name)
    check_configs(configs)
    if old.configs == configs:
        return Plan([], image)
    following = old._replace(configs=dict(configs))
    rules = TopicRules.of(following, policy)
    draft = Draft(image, policy)
    _review_eligible(draft, old, rules)
    draft.configure(old, following.configs)
    electorate = Electorate.of(image.brokers)
    unclean: list[UncleanElection] = []
    for partition in draft.partitions(old):
        if partition.leader == NO_LEADER:
            elect_leaderless(draft, old, partition, rules, electorate, unclean)
    return draft.plan(unclean)


def _review_eligible(draft: Draft, topic: TopicImage, rules: TopicRules) -> None:
    """Recompute the ELR: with a smaller `min.insync.replicas` the high watermark may pass them.

    So they are removed before the leader can see the new setting.
    """
    for partition in topic.partitions:
        if partition.elr:
            elr = eligible(partition, rules, isr=partition.isr)
            if elr != partition.elr:
                draft.put(topic, partition._replace(elr=elr))


def alter_broker_configs(
    image: ClusterImage, name: str, configs: Mapping[str, str], policy_after: Policy
) -> Plan[list[UncleanElection]]:
    """Replace all dynamic settings of a broker, or of all brokers with the name "".

    `policy_after` is the policy with these settings: they may be defaults of topics.
    """
    if not is_config_name(name):
        raise InvalidRequest(f"{name!r} is no broker id")
    old = image.broker_configs
    if dict(old.get(name, {})) == configs:
        return Plan([], image)
    draft = Draft(image, policy_after)
    for topic in image.topics.values():
        if any(one.elr for one in topic.partitions):
            _review_eligible(draft, topic, TopicRules.of(topic, policy_after))
    draft.groups.append([_broker_configs_change(name, configs, is_there=name in old)])
    unclean = run_blocking(
        elect_leaderless_steps(draft, policy_after, Electorate.of(image.brokers))
    )
    following = {key: value for key, value in old.items() if key != name}
    if configs:
        following[name] = dict(configs)
    return draft.plan(unclean, broker_configs=following)


def _broker_configs_change(name: str, configs: Mapping[str, str], *, is_there: bool) -> Operation:
    path, data = nodes.broker_configs_path(name), nodes.encode_configs(configs)
    if not configs:
        return Delete(path=path, version=ANY_VERSION)
    if is_there:
        return Set(path=path, data=data, version=ANY_VERSION)
    return Create(path=path, data=data)
