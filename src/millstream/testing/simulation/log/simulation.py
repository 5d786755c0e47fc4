"""Seeded random histories of one log: the long form of the state machine in the tests.

Each seed switches a random subset of operations on (swarm testing): with all of them in every
run the rare combinations, such as many truncations and no flush, would hardly ever come up.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from millstream.kernels.compression import Codec
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.log_kit import COMPACTED, SMALL_SEGMENTS
from millstream.testing.simulation.log.driver import LogDriver

Step = Callable[[LogDriver, SeededRandomness], None]

ALWAYS: Final[dict[str, Step]] = {
    "append": lambda log, r: log.append(
        r.integer(1, 5), codec=Codec(r.integer(0, 5)), size=r.choice([0, 20, 300])
    ),
}
SOMETIMES: Final[dict[str, Step]] = {
    "raise_epoch": lambda log, r: log.raise_epoch(r.integer(1, 4)),
    "append_idempotent": lambda log, r: log.append_idempotent(r.integer(1, 4), r.integer(1, 5)),
    "retry": lambda log, r: log.retry(r.integer(1, 4)),
    "append_transactional": lambda log, r: log.append_transactional(
        r.integer(1, 4), r.integer(1, 5)
    ),
    "end_transaction": lambda log, r: log.end_transaction(r.integer(1, 4), is_commit=r.chance(0.5)),
    "append_as_follower": lambda log, r: log.append_as_follower(
        r.integer(1, 5), gap=r.choice([0, 0, 0, 3])
    ),
    "fetch": lambda log, r: log.fetch(r.integer(1, 8), size=r.choice([20, 300])),
    "flush": lambda log, _: log.flush(),
    "checkpoint": lambda log, _: log.checkpoint(),
    "roll": lambda log, _: log.roll(),
    "set_high_watermark": lambda log, r: log.set_high_watermark(r.between(0, 1)),
    "truncate": lambda log, r: log.truncate(r.between(0, 1)),
    "truncate_fully": lambda log, r: log.truncate_fully(r.integer(0, 6)),
    "advance_start": lambda log, r: log.advance_start(r.between(0, 1)),
    "delete_due": lambda log, _: log.delete_due(),
    "lose_index": lambda log, r: log.lose_index(
        r.between(0, 1), r.choice([".index", ".timeindex"])
    ),
    "restart": lambda log, _: log.restart(),
    "kill": lambda log, _: log.kill(),
    "lose_power": lambda log, _: log.lose_power(),
}
TRANSACTIONS: Final = {"append_transactional", "end_transaction", "fetch"}
"""Not together with compaction: which of their records and markers may go is a model of its own
(`tests/property/test_storage_compaction.py`)."""
RARE: Final = {"truncate_fully": 0.1, "lose_index": 0.3, "advance_start": 0.3}
"""Steps that would otherwise empty every log before it becomes interesting."""


def simulate_log(
    seed: int, *, steps: int, on_step: Callable[[str], None] | None = None
) -> Counter[str]:
    """Run one seed; raises at the first step after which log and model differ.

    Returns how often each step was taken, so that a caller can see that it tested something.
    """
    randomness = SeededRandomness(f"log simulation {seed}")
    enabled = dict(ALWAYS)
    enabled.update({name: step for name, step in SOMETIMES.items() if randomness.chance(0.6)})
    config = SMALL_SEGMENTS
    if randomness.chance(0.4):
        config = COMPACTED
        enabled = {name: step for name, step in enabled.items() if name not in TRANSACTIONS}
        enabled["compact"] = lambda log, _: log.compact()
    driver = LogDriver(seed, config=config)
    counts: Counter[str] = Counter()
    for _ in range(steps):
        name = randomness.choice(list(enabled))
        if not randomness.chance(RARE.get(name, 1.0)):
            continue
        if on_step is not None:
            on_step(name)
        enabled[name](driver, randomness)
        driver.verify()
        counts[name] += 1
    counts["cleanings"] = driver.cleanings
    return counts
