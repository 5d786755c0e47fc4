"""The checker of consumer groups finds every violation that is planted, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.testing.history.group_events import (
    Assigned,
    Began,
    Committed,
    EventWriter,
    Failed,
    GenerationChanged,
    Harmed,
    Left,
    LineFollower,
    Lost,
    MemberEvent,
    ObservedOffsets,
    PartitionName,
    Processed,
    Produced,
    Refused,
    Revoked,
    member_event,
    produced_event,
)
from millstream.testing.history.groups import (
    BEGAN_BEFORE,
    GAVE_UP,
    NOT_OWNED,
    SKIPPED,
    TOO_EARLY,
    TWO_OWNERS,
    UNPROCESSED,
    WENT_BACK,
    WRONG_RECORD,
    GroupHistory,
    check_group,
    figures,
)

P: PartitionName = ("t", 0)
Q: PartitionName = ("t", 1)


def history(
    *,
    records: int = 0,
    seen: list[ObservedOffsets] | None = None,
    harms: list[Harmed] | None = None,
    **members: list[MemberEvent],
) -> GroupHistory:
    """Of members by their names; `records` were produced to the first partition."""
    made = GroupHistory(observed_offsets=seen or [], harms=harms or [])
    for number in range(records):
        made.produce(Produced(0, P, number, f"v{number}"))
    for name, events in members.items():
        for event in events:
            made.member_history(name).add(event)
    return made


def kinds(of: GroupHistory) -> list[str]:
    return [anomaly.kind for anomaly in check_group(of)]


def processed(at_ns: int, *offsets: int, partition: PartitionName = P) -> list[MemberEvent]:
    return [Processed(at_ns, partition, offset, f"v{offset}") for offset in offsets]


def committed(began_ns: int, at_ns: int, offset: int) -> Committed:
    return Committed(at_ns, began_ns, {P: offset})


def hand_over(**changes: int) -> GroupHistory:
    """A reads three records, commits and gives the partition to B, which reads the rest."""
    at = {"released": 50, "taken": 60, "a_generation": 1, "b_generation": 2, "first": 3, **changes}
    return history(
        records=5,
        a=[
            Assigned(10, (P, Q), at["a_generation"]),
            *processed(20, 0, 1, 2),
            committed(30, 40, 3),
            Revoked(at["released"], (P,)),
            GenerationChanged(55, 2),
        ],
        b=[
            Assigned(at["taken"], (P,), at["b_generation"]),
            *processed(70, *range(at["first"], 5)),
            committed(80, 90, 5),
            Left(100),
        ],
        seen=[
            ObservedOffsets(35, 34, {P: -1}),
            ObservedOffsets(45, 44, {P: 3}),
            ObservedOffsets(120, 110, {P: 5, Q: -1}),
        ],
    )


def test_good_hand_over_is_good() -> None:
    text = hand_over()
    assert check_group(text) == []
    assert figures(text)["records processed"] == 5
    assert figures(text)["generations"] == 2


PLANTED: dict[str, tuple[Callable[[], GroupHistory], str]] = {
    "handed over before release": (lambda: hand_over(released=65), TOO_EARLY),
    "same generation, one after the other": (lambda: hand_over(b_generation=1), TWO_OWNERS),
    "offsets answered empty": (lambda: hand_over(first=0), BEGAN_BEFORE),
    "records between two owners": (lambda: hand_over(first=4), UNPROCESSED),
    "second owner of a member that lives": (
        lambda: history(a=[Assigned(1, (P,), -1)], b=[Assigned(2, (P,), -1)]),
        TOO_EARLY,
    ),
    "commit of an old generation": (
        lambda: history(a=[committed(10, 20, 7)], b=[committed(30, 40, 5)]),
        WENT_BACK,
    ),
    "offset that an observer no longer sees": (
        lambda: history(a=[committed(10, 20, 7)], seen=[ObservedOffsets(40, 30, {P: -1})]),
        WENT_BACK,
    ),
    "offset that goes back for an observer": (
        lambda: history(seen=[ObservedOffsets(20, 10, {P: 9}), ObservedOffsets(40, 30, {P: 8})]),
        WENT_BACK,
    ),
    "record jumped over": (
        lambda: history(a=[Assigned(1, (P,), 1), *processed(2, 0, 1, 3)]),
        SKIPPED,
    ),
    "work after release": (
        lambda: history(a=[Assigned(1, (P,), 1), Revoked(2, (P,)), *processed(3, 0)]),
        NOT_OWNED,
    ),
    "another value": (
        lambda: history(records=1, a=[Assigned(1, (P,), 1), Processed(2, P, 0, "x")]),
        WRONG_RECORD,
    ),
    "a client that ends by itself": (lambda: history(a=[Failed(1, "why")]), GAVE_UP),
}


@pytest.mark.parametrize(("planted", "kind"), PLANTED.values(), ids=list(PLANTED))
def test_planted_violation_is_found(planted: Callable[[], GroupHistory], kind: str) -> None:
    assert set(kinds(planted())) == {kind}


def test_harmed_member_does_not_know_what_it_owns() -> None:
    a: list[MemberEvent] = [Assigned(10, (P,), 1), Revoked(90, (P,))]
    b: list[MemberEvent] = [Assigned(50, (P,), 2)]
    assert kinds(history(a=a, b=b, harms=[Harmed(40, "a", "paused")])) == []
    assert kinds(history(a=a, b=b, harms=[Harmed(60, "a", "paused")])) == [TOO_EARLY]
    assert kinds(history(a=a, b=b, harms=[Harmed(40, "b", "paused")])) == [TOO_EARLY]
    assert kinds(history(a=a, b=b, harms=[Harmed(5, "a", "before")])) == [TOO_EARLY]


def test_harm_does_not_excuse_two_owners_in_one_generation() -> None:
    text = history(
        a=[Assigned(10, (P,), 1)], b=[Assigned(50, (P,), 1)], harms=[Harmed(40, "a", "paused")]
    )
    assert kinds(text) == [TWO_OWNERS]


def test_fenced_member_learns_it_late() -> None:
    text = history(a=[Assigned(10, (P,), 1), Lost(90, (P,))], b=[Assigned(50, (P,), 2)])
    assert kinds(text) == []
    assert figures(text)["fenced without harm"] == 1


def test_assignment_may_be_old_news() -> None:
    """B was stopped while its first assignment was on the way; the group is two generations on."""

    def text(generation: int, *end: MemberEvent) -> GroupHistory:
        return history(a=[Assigned(10, (P,), 3)], b=[Assigned(50, (P,), generation), *end])

    assert kinds(text(1, Lost(60, (P,)))) == []
    assert kinds(text(4, Lost(60, (P,)))) == [TOO_EARLY]
    assert kinds(text(1, Revoked(60, (P,)))) == [TOO_EARLY]


def test_killed_member_owns_until_it_is_killed() -> None:
    early = history(a=[Assigned(10, (P,), 1)], b=[Assigned(50, (P,), 2)])
    early.harm(Harmed(60, "a", "killed"), is_death=True)
    assert kinds(early) == [TOO_EARLY]
    late = history(a=[Assigned(10, (P,), 1)], b=[Assigned(50, (P,), 2)])
    late.harm(Harmed(40, "a", "killed"), is_death=True)
    assert kinds(late) == []
    assert late.owners() == {P: ["b"]}


def test_lives_of_a_static_member_are_one_owner() -> None:
    def life(name: str, at_ns: int) -> list[MemberEvent]:
        return [Began(at_ns, name, "g", "i", "eager"), Assigned(at_ns + 1, (P,), 4)]

    text = history(first=life("first", 10), second=life("second", 50))
    text.harm(Harmed(40, "first", "killed"), is_death=True)
    assert kinds(text) == []
    text.member_history("third").add(Began(60, "third", "g", "other", "eager"))
    text.member_history("third").add(Assigned(61, (P,), 4))
    assert set(kinds(text)) == {TOO_EARLY, TWO_OWNERS}


def test_overlapping_commits_have_no_order() -> None:
    text = history(
        a=[committed(10, 30, 7)], b=[committed(20, 40, 5)], seen=[ObservedOffsets(35, 15, {P: 5})]
    )
    assert kinds(text) == []


def test_refused_commit_may_count_or_not() -> None:
    text = history(a=[Refused(20, {P: 9}, "illegal generation")], b=[committed(30, 40, 5)])
    assert kinds(text) == []


def test_reading_again_is_no_skip() -> None:
    text = history(records=3, a=[Assigned(1, (P,), 1), *processed(2, 0, 1, 0, 1, 2)])
    assert kinds(text) == []
    assert figures(text)["records processed again"] == 2


def test_lines_become_events(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = LineFollower(path)
    assert list(follower.take()) == []
    writer = EventWriter(path)
    writer.write("began", member="a", group="g", instance=None, protocol="eager")
    writer.partitions("assigned", [P, Q], gen=3)
    first = [member_event(line) for line in follower.take()]
    assert [type(event) for event in first] == [Began, Assigned]
    assert first[1] == Assigned(first[1].at_ns, (P, Q), 3)
    assert first[0].at_ns <= first[1].at_ns
    said = {"t": 5, "from": 4, "offsets": [["t", 0, 7]], "parts": [["t", 1]], "gen": None}
    said |= {"topic": "t", "p": 0, "o": 6, "v": "x", "why": "y"}
    wanted: dict[str, MemberEvent] = {
        "generation": GenerationChanged(5, -1),
        "revoked": Revoked(5, (Q,)),
        "lost": Lost(5, (Q,)),
        "processed": Processed(5, P, 6, "x"),
        "committed": Committed(5, 4, {P: 7}),
        "refused": Refused(5, {P: 7}, "y"),
        "left": Left(5),
        "error": Failed(5, "y"),
    }
    with path.open("a") as file:
        file.writelines(json.dumps({**said, "e": kind}) + "\n" for kind in wanted)
        file.write('{"t": 6, "e": "le')
    assert [member_event(line) for line in follower.take()] == list(wanted.values())
    assert produced_event(json.dumps({**said, "e": "produced"})) == Produced(5, P, 6, "x")
    assert list(follower.take()) == []
    with path.open("a") as file:
        file.write('ft"}\n')
    assert [member_event(line) for line in follower.take()] == [Left(6)]
    writer.close()
