"""Which HTTP connections are closed for others, and whose metrics are written next."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from millstream.observe.http_places import (
    CONNECTIONS_MAX,
    PER_ADDRESS_MAX,
    READER_WAIT_S,
    SCRAPES_MAX,
    Occupant,
    Scrapes,
    Use,
    surplus,
)


@dataclass(eq=False)
class One:
    """A connection."""

    address: str = "a"
    what: Use = Use.IDLE
    since_s: float = 0.0
    waited_s: float = 0.0

    def use(self, now_s: float) -> Use:
        return self.what

    def reader_wait_s(self, now_s: float) -> float:
        return self.waited_s


def closed(ones: list[One], connections_max: int = CONNECTIONS_MAX) -> list[Occupant]:
    return surplus(ones, 100.0, connections_max=connections_max)


def test_those_of_least_use_go_first_and_the_oldest_of_them() -> None:
    ones = [One(what=use, since_s=since) for use in Use for since in (5.0, 3.0, 4.0)]
    found = closed(ones, connections_max=10)
    in_order = [(use, since) for use in Use for since in (3.0, 4.0, 5.0)]
    assert [(one.use(0), one.since_s) for one in found] == in_order[: len(ones) - 10]


def test_an_address_with_few_connections_keeps_them_while_another_has_many() -> None:
    """An idle scraper of another machine does not pay for a flood."""
    scraper = [One("scraper") for _ in range(3)]
    flood = [One("flood", Use.HEAD) for _ in range(500)]
    found = closed([*scraper, *flood])
    assert len(found) == 500 - PER_ADDRESS_MAX
    assert not set(found) & set(scraper)


def test_the_young_are_spared_unless_there_is_no_room_at_all() -> None:
    young = [One(what=Use.YOUNG, since_s=number) for number in range(40)]
    assert closed(young) == []
    assert surplus(young, 100.0, connections_max=39, spares_young=False)[0] is young[0]


@given(
    st.lists(
        st.builds(One, st.sampled_from("abc"), st.sampled_from(Use), st.floats(0, 9)), max_size=90
    )
)
def test_no_reader_of_an_answer_is_closed_and_what_stays_fits(ones: list[One]) -> None:
    found = set(closed(ones))
    assert not any(one.use(0) in (Use.YOUNG, Use.ANSWERED) for one in found)
    stay = [one for one in ones if one not in found]
    closable = [one for one in stay if one.what < Use.YOUNG]
    assert len(stay) <= CONNECTIONS_MAX or not closable
    for address in "abc":
        mine = [one for one in stay if one.address == address]
        assert len(mine) <= PER_ADDRESS_MAX or all(one.what >= Use.YOUNG for one in mine)


def test_scrapes_of_the_address_that_is_served_least_are_next() -> None:
    scrapes = Scrapes()
    flood = [One("flood") for _ in range(SCRAPES_MAX + 5)]
    assert [scrapes.begin(one) for one in flood] == [True] * SCRAPES_MAX + [False] * 5
    scraper = One("scraper")
    assert not scrapes.begin(scraper)
    assert scrapes.take_next() is None
    scrapes.end(flood[0])
    assert scrapes.take_next() is scraper
    scrapes.end(scraper)
    assert scrapes.take_next() is flood[SCRAPES_MAX]


def test_who_does_not_read_is_in_the_way_only_of_others() -> None:
    scrapes = Scrapes()
    served = [One(waited_s=2 * READER_WAIT_S), *(One() for _ in range(SCRAPES_MAX - 1))]
    for one in served:
        assert scrapes.begin(one)
    assert scrapes.stuck(0.0) == []
    assert not scrapes.begin(One())
    assert scrapes.stuck(0.0) == served[:1]
