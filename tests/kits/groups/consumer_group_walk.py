"""Long random histories of a group from a seed: denser than what a shrinking search comes to."""

from random import Random

from kits.groups.consumer_group_history import GroupHistory

TOPICS = ("orders", "payments", "refunds")
PATTERNS = ("", "", "", "or.*", "(pay|ref).*", ".*s")
READERS_MAX = 6


class Walk:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        interval_ms = self.chance.choice((0, 0, 1_000))
        assignor = self.chance.choice(("uniform", "range"))
        self.history = GroupHistory(interval_ms=interval_ms, assignor=assignor)

    def run(self, steps: int) -> None:
        """Steps, then peace."""
        actions = (
            (20, self.beat), (12, self.revoke), (8, self.join), (3, self.leave), (2, self.die),
            (3, self.subscribe), (6, self.commit), (8, self.pass_ms), (3, self.change_topics),
            (2, self.refuse), (2, self.history.reload), (6, self.all_beat),
        )  # fmt: skip
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            self.chance.choices(actions, weights)[0][1]()
        self.history.settle()

    def number(self) -> int | None:
        reader = self.history.pick(self.chance.randrange(100))
        return None if reader is None else reader.number

    def wanted(self) -> dict[str, object]:
        topics = self.chance.sample(TOPICS, self.chance.choice((0, 1, 1, 2, 3)))
        return {"topics": topics, "regex": self.chance.choice(PATTERNS)}

    def beat(self) -> None:
        if (number := self.number()) is not None:
            lost, all_ = self.chance.random() < 0.15, self.chance.random() < 0.2
            self.history.beat(number, loses_answer=lost, says_all=all_)

    def all_beat(self) -> None:
        for reader in list(self.history.readers.values()):
            if not reader.is_dead:
                self.history.beat(reader.number)

    def revoke(self) -> None:
        if (number := self.number()) is not None:
            self.history.revoke(number)
            self.history.beat(number)

    def join(self) -> None:
        if sum(not one.is_dead for one in self.history.readers.values()) < READERS_MAX:
            is_classic = self.chance.random() < 0.3
            instance_id = None if is_classic else self.chance.choice((None, None, "i1", "i2"))
            wanted = self.wanted()
            self.history.add(
                topics=wanted["topics"],  # type: ignore[arg-type]
                regex=str(wanted["regex"]),
                instance_id=instance_id,
                is_classic=is_classic,
            )

    def leave(self) -> None:
        if (number := self.number()) is not None:
            self.history.leave(number, is_back_soon=self.chance.random() < 0.5)

    def die(self) -> None:
        if (number := self.number()) is not None:
            self.history.die(number)

    def subscribe(self) -> None:
        if (number := self.number()) is not None:
            wanted = self.wanted()
            self.history.subscribe(number, wanted["topics"], str(wanted["regex"]))  # type: ignore[arg-type]

    def commit(self) -> None:
        if (number := self.number()) is not None:
            self.history.commit(number, back=self.chance.randrange(4))

    def pass_ms(self) -> None:
        self.history.pass_ms(self.chance.choice((200, 1_500, 5_000, 12_000, 31_000, 46_000)))

    def refuse(self) -> None:
        self.history.world.refuses = True
        self.beat()
        self.history.pass_ms(100)
        self.history.world.refuses = False

    def change_topics(self) -> None:
        topics = self.history.world.topics
        facts = topics.by_name("orders")
        if self.chance.random() < 0.5 and facts is not None and facts.partition_count < 9:
            topics.grow("orders", facts.partition_count + 1)
        elif topics.by_name("refunds") is None:
            topics.create("refunds", self.chance.randint(1, 4))
        else:
            topics.delete("refunds")


def walk(seed: int, steps: int = 80) -> None:
    """Raises AssertionError or InvariantViolated, with the seed."""
    try:
        Walk(seed).run(steps)
    except BaseException as error:
        call = f"import consumer_group_walk; consumer_group_walk.walk({seed}, {steps})"
        error.add_note(f"replay: PYTHONPATH=src:tests python -c '{call}'")
        raise
