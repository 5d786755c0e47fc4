"""What a client gets about a leader on another broker (KIP-951)."""

from types import SimpleNamespace
from typing import Any, cast

from kits.broker.topic_handlers_kit import INSIDE, ME, Desk
from millstream.broker.requests.advertised_brokers import LeaderHint, leader_hint
from millstream.controller.image import BrokerImage, Endpoint


def hint(desk: Desk) -> LeaderHint | None:
    peer = SimpleNamespace(listener=INSIDE)
    return leader_hint(cast("Any", SimpleNamespace(services=desk.services, peer=peer)), "t", 0)


def test_a_leader_is_told_with_its_address() -> None:
    desk = Desk()
    desk.create("t")
    assert hint(desk) == (1, 0, "inside", 9092, "r1")


def test_the_address_that_a_fenced_broker_had_is_no_hint() -> None:
    desk = Desk()
    desk.create("t")
    desk.register(BrokerImage(ME, (Endpoint(INSIDE, "inside", 9092),), is_fenced=True))
    assert hint(desk) == (1, 0, None, 0, None)
