"""Randomness depends only on its seed, and components do not disturb each other."""

from millstream.runtime.randomness import Randomness, SeededRandomness, system_randomness


def draws(randomness: Randomness) -> list[object]:
    return [
        randomness.between(1.0, 2.0),
        randomness.integer(0, 1000),
        randomness.choice("abcdef"),
        randomness.bytes(8),
        randomness.chance(0.5),
    ]


def test_one_seed_one_stream() -> None:
    assert draws(SeededRandomness(7)) == draws(SeededRandomness(7))
    assert draws(SeededRandomness(7)) != draws(SeededRandomness(8))


def test_a_fork_depends_on_seed_and_name_not_on_what_was_drawn() -> None:
    fresh, used = SeededRandomness(7), SeededRandomness(7)
    draws(used)
    assert draws(fresh.fork("disk")) == draws(used.fork("disk"))
    assert draws(fresh.fork("disk")) != draws(fresh.fork("network"))


def test_forking_many_times_stays_cheap() -> None:
    """Each crash of a simulated disk forks once more: its seed must not double every time."""
    randomness = SeededRandomness(7)
    for _ in range(100):
        randomness = randomness.fork("disk")
    assert len(str(randomness.seed)) < 1000


def test_ranges() -> None:
    randomness = SeededRandomness(1)
    assert {randomness.integer(3, 6) for _ in range(200)} == {3, 4, 5}
    assert all(1.0 <= randomness.between(1.0, 2.0) <= 2.0 for _ in range(200))
    assert not any(randomness.chance(0.0) for _ in range(50))
    assert all(randomness.chance(1.0) for _ in range(50))


def test_processes_get_different_streams() -> None:
    assert system_randomness().bytes(16) != system_randomness().bytes(16)
