"""A classic group under random clients, write failures, failovers and the passing of time."""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kits.groups.classic_driver import PROTOCOLS, Client, Driver, random_run

indexes = st.integers(0, 30)


class ClassicMachine(RuleBasedStateMachine):
    """Every answer is judged at once: I-27, I-28, I-30, I-36; at the end they settle: I-31."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()

    def client(self, index: int) -> Client | None:
        clients = self.driver.clients
        return clients[index % len(clients)] if clients else None

    @rule(
        instance=st.sampled_from([None, None, 0, 1]),
        protocols=st.integers(0, len(PROTOCOLS) - 1),
        version=st.sampled_from([9, 0, 3, 4, 5, 8]),
    )
    def arrive(self, instance: int | None, protocols: int, version: int) -> None:
        if len(self.driver.clients) < 10:
            self.driver.arrive(instance, protocols=protocols, version=version)

    @rule(indexes=st.lists(indexes, min_size=1, max_size=6))
    def go_on(self, indexes: list[int]) -> None:
        for index in indexes:
            if client := self.client(index):
                self.driver.step(client)

    @rule(index=indexes, protocols=st.integers(0, len(PROTOCOLS) - 1))
    def join_in_the_middle(self, index: int, protocols: int) -> None:
        if client := self.client(index):
            client.protocols = PROTOCOLS[protocols]
            self.driver.send_join(client)

    @rule(index=indexes)
    def ask_assignment_again(self, index: int) -> None:
        client = self.client(index)
        if client is not None and client.generation >= 0 and not client.is_lazy:
            self.driver.send_sync(client)

    @rule(index=indexes)
    def commit(self, index: int) -> None:
        if client := self.client(index):
            self.driver.commit(client)

    @rule(index=indexes)
    def leave(self, index: int) -> None:
        if client := self.client(index):
            self.driver.leave(client)

    @rule(index=indexes)
    def crash(self, index: int) -> None:
        if client := self.client(index):
            client.is_stopped = True

    @rule(index=indexes)
    def get_lazy(self, index: int) -> None:
        if client := self.client(index):
            self.driver.get_lazy(client)

    @rule(what=st.integers(0, 3), seed=st.integers(0, 2**16))
    def misbehave(self, what: int, seed: int) -> None:
        self.driver.rogue(what, *self.driver.any_member(Random(seed)))

    @rule()
    def acknowledge(self) -> None:
        self.driver.acknowledge()

    @rule()
    def refuse(self) -> None:
        self.driver.refuse()

    @rule()
    def fail_over(self) -> None:
        self.driver.fail_over()

    @rule(size=st.integers(1, 6))
    def resize(self, size: int) -> None:
        self.driver.resize(size)

    @rule(by_ms=st.sampled_from([1, 500, 3_000, 6_000, 9_999, 11_000, 31_000, 301_000]))
    def pass_ms(self, by_ms: int) -> None:
        self.driver.pass_ms(by_ms)

    def teardown(self) -> None:
        self.driver.settle()


TestClassicMachine = ClassicMachine.TestCase
TestClassicMachine.settings = settings(
    max_examples=150, stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("part", range(4))
def test_seeds_settle(part: int) -> None:
    """Longer runs in which clients mostly do what they should; the seed is in the failure."""
    for seed in range(part * 100, part * 100 + 100):
        try:
            random_run(seed, steps=150)
        except BaseException as error:
            error.add_note(f"replay: random_run({seed}, steps=150) of kits.groups.classic_driver")
            raise
