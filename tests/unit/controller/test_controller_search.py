"""Whom a broker asks for metadata that the coordination service does not reach."""

from millstream.broker.cluster.controller_calls import ControllerSearch
from millstream.controller.image import BrokerImage, Endpoint
from millstream.model.ids import BrokerId

LISTENER = "INSIDE"


def place(broker: int, *, listener: str = LISTENER, port: int = 9092) -> Endpoint:
    return Endpoint(listener, f"host{broker}", port)


def search(*brokers: int) -> ControllerSearch:
    """Of broker 1, which has met these."""
    made = ControllerSearch(BrokerId(1))
    made.add_brokers({BrokerId(one): BrokerImage(BrokerId(one), (place(one),)) for one in brokers})
    return made


def asked(made: ControllerSearch, count: int) -> list[str | None]:
    found = [made.next(LISTENER) for _ in range(count)]
    return [one.host if one is not None else None for one in found]


def test_all_others_are_asked_in_turn() -> None:
    hosts = asked(search(1, 2, 3, 4), 6)
    assert sorted(map(str, hosts[:3])) == ["host2", "host3", "host4"]
    assert hosts[3:] == hosts[:3]


def test_nobody_is_asked_where_nobody_else_is_known() -> None:
    assert asked(search(), 2) == [None, None]
    assert asked(search(1), 2) == [None, None]


def test_who_is_gone_from_later_metadata_is_still_asked() -> None:
    made = search(2, 3, 4)
    fenced = BrokerImage(BrokerId(3), (place(3),), is_fenced=True)
    made.add_brokers({BrokerId(2): BrokerImage(BrokerId(2), (place(2),)), BrokerId(3): fenced})
    assert sorted(map(str, asked(made, 3))) == ["host2", "host3", "host4"]


def test_who_moved_is_asked_where_he_is_now() -> None:
    made = search(2)
    made.add_broker(BrokerId(2), (place(2, port=9093),))
    assert made.next(LISTENER) == place(2, port=9093)


def test_whom_somebody_points_to_is_asked_next_and_once() -> None:
    made = search(2)
    made.use_hint(BrokerId(9), [place(9)])
    assert asked(made, 3) == ["host9", "host2", "host2"]


def test_a_broker_that_others_point_to_does_not_ask_itself() -> None:
    made = search(1, 2)
    made.use_hint(BrokerId(1), [place(1)])
    assert asked(made, 2) == ["host2", "host2"]


def test_only_the_listener_between_brokers_counts() -> None:
    made = search(2)
    made.add_broker(BrokerId(3), (place(3, listener="OUTSIDE"),))
    made.use_hint(BrokerId(4), [place(4, listener="OUTSIDE")])
    assert asked(made, 2) == ["host2", "host2"]
