"""Bugs of a group coordinator that the simulation of groups must find."""

from typing import Any, Final

from millstream.shards.errors import NotCoordinator
from millstream.shards.led_shard import Phase
from millstream.testing.history.groups import (
    BEGAN_BEFORE,
    TOO_EARLY,
    TWO_OWNERS,
    UNPROCESSED,
    WENT_BACK,
)
from millstream.testing.simulation.cluster.planted_bugs import Patch, Planted


def _any_commit(_: Any) -> Any:
    return lambda *_, **__: None


def _any_commit_of_any_partition(_: Any) -> Any:
    return lambda *_, **__: lambda *_, **__: None


def _everything_is_free(_: Any) -> Any:
    return lambda *_: True


def _serves_while_it_loads(_: Any) -> Any:
    def check_active(led: Any) -> None:
        if led.phase is Phase.DROPPED:
            raise NotCoordinator

    return check_active


def _answers_when_appended(original: Any) -> Any:
    """Before any other replica has it: a failover takes back what was acknowledged."""

    def await_commit(led: Any, writes: Any, base: Any, time: Any) -> None:
        for write in writes:
            for reply in write.replies:
                led._context.answer(reply)  # noqa: SLF001
        original(led, [one._replace(replies=()) for one in writes], base, time)

    return await_commit


def _never_over(original: Any) -> Any:
    """Sessions of classic groups: their keys are member ids, those of consumer groups are pairs."""

    def set_later(deadlines: Any, key: Any, at_ms: int) -> None:
        original(deadlines, key, at_ms + (_FOREVER_MS if isinstance(key, str) else 0))

    return set_later


_FOREVER_MS: Final = 1_000_000_000
_LED: Final = "millstream.shards.led_shard:LedShard"

GROUP_BUGS: Final = (
    Planted(
        "a classic commit of an old generation is accepted",
        (Patch("millstream.groups.classic.commits:check_commit", _any_commit),),
        (WENT_BACK,),
        first_seed=16,
    ),
    Planted(
        "a next-generation commit of an old epoch is accepted",
        (Patch("millstream.groups.consumer.group:check_commit", _any_commit_of_any_partition),),
        (WENT_BACK,),
        first_seed=107,
    ),
    Planted(
        "a partition is handed over before its release",
        (Patch("millstream.groups.consumer.state:GroupState.is_free", _everything_is_free),),
        (TOO_EARLY, TWO_OWNERS, "I-27"),
    ),
    Planted(
        "offsets are answered empty while they are loaded",
        (Patch(f"{_LED}.check_active", _serves_while_it_loads),),
        (WENT_BACK, BEGAN_BEFORE),
        first_seed=49,
    ),
    Planted(
        "an offset commit is acknowledged before it is committed",
        (Patch(f"{_LED}._await_commit", _answers_when_appended),),
        (WENT_BACK, BEGAN_BEFORE, UNPROCESSED, TWO_OWNERS, TOO_EARLY),
    ),
    Planted(
        "a dead member of a classic group is never removed",
        (Patch("millstream.groups.deadlines:Deadlines.set", _never_over),),
        ("I-31",),
        first_seed=13,
    ),
)
