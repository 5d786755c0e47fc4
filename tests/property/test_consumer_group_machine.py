"""Random members against the next-generation group: I-27, I-28, I-31, and reloading at any time.

Every random test here prints its steps; hypothesis replays the failing one by itself.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kits.groups.consumer_group_history import GroupHistory

choices = st.integers(0, 5)
topic_lists = st.lists(st.sampled_from(["orders", "payments", "refunds"]), max_size=2, unique=True)
patterns = st.sampled_from(["", "", "", "or.*", "(pay|ref).*", ".*s"])
instances = st.sampled_from([None, None, None, "i1", "i2"])


class ConsumerGroupMachine(RuleBasedStateMachine):
    """All that members and the cluster can do, in any order."""

    history: GroupHistory

    @initialize(
        interval_ms=st.sampled_from([0, 0, 1_000]), assignor=st.sampled_from(["uniform", "range"])
    )
    def start(self, interval_ms: int, assignor: str) -> None:
        self.history = GroupHistory(interval_ms=interval_ms, assignor=assignor)

    @precondition(lambda self: sum(not r.is_dead for r in self.history.readers.values()) < 5)
    @rule(topics=topic_lists, regex=patterns, instance_id=instances)
    def join(self, topics: list[str], regex: str, instance_id: str | None) -> None:
        self.history.add(topics=topics, regex=regex, instance_id=instance_id)

    @precondition(lambda self: sum(not r.is_dead for r in self.history.readers.values()) < 5)
    @rule(topics=topic_lists)
    def join_classic(self, topics: list[str]) -> None:
        self.history.add(topics=topics, is_classic=True)

    @rule(choice=choices, loses_answer=st.booleans(), says_all=st.booleans())
    def beat(self, choice: int, loses_answer: bool, says_all: bool) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.beat(reader.number, loses_answer=loses_answer, says_all=says_all)

    @rule()
    def all_beat(self) -> None:
        for reader in list(self.history.readers.values()):
            if not reader.is_dead:
                self.history.beat(reader.number)

    @rule(choice=choices)
    def revoke(self, choice: int) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.revoke(reader.number)
            self.history.beat(reader.number)

    @rule(choice=choices, topics=topic_lists, regex=patterns)
    def subscribe(self, choice: int, topics: list[str], regex: str) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.subscribe(reader.number, topics, regex)

    @rule(choice=choices, is_back_soon=st.booleans())
    def leave(self, choice: int, is_back_soon: bool) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.leave(reader.number, is_back_soon=is_back_soon)

    @rule(choice=choices)
    def die(self, choice: int) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.die(reader.number)

    @rule(choice=choices, back=st.integers(0, 3))
    def commit(self, choice: int, back: int) -> None:
        reader = self.history.pick(choice)
        if reader is not None:
            self.history.commit(reader.number, back=back)

    @rule(by_ms=st.sampled_from([500, 2_000, 12_000, 31_000, 46_000]))
    def pass_ms(self, by_ms: int) -> None:
        self.history.pass_ms(by_ms)

    @rule(choice=choices)
    def beat_refused(self, choice: int) -> None:
        """The log takes nothing for a while, neither from members nor from timers."""
        reader = self.history.pick(choice)
        self.history.world.refuses = True
        if reader is not None:
            self.history.beat(reader.number)
        self.history.pass_ms(100)
        self.history.world.refuses = False

    @rule()
    def grow(self) -> None:
        topics = self.history.world.topics
        facts = topics.by_name("orders")
        if facts is not None and facts.partition_count < 8:
            topics.grow("orders", facts.partition_count + 1)

    @rule()
    def create_or_delete(self) -> None:
        topics = self.history.world.topics
        if topics.by_name("refunds") is None:
            topics.create("refunds", 3)
        else:
            topics.delete("refunds")

    @rule()
    def reload(self) -> None:
        self.history.reload()

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.settle()


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestConsumerGroupMachine.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
