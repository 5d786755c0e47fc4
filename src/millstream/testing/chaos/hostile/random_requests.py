"""Random attacks: a random API, damaged at random, in random numbers. The name has the seed."""

import time
from functools import partial
from typing import Final

from millstream.broker.requests.registry import SERVED
from millstream.testing.chaos.hostile.attack import (
    Attack,
    Connection,
    Scene,
    Send,
    deadline_of,
    noted,
)
from millstream.testing.chaos.hostile.floods import pump
from millstream.testing.fuzz.generate import Filler, Form
from millstream.testing.fuzz.mutate import mutate
from millstream.wire.api_keys import ApiKey

PREFIX: Final = "random "
FRAMES: Final = 400
HARMLESS: Final = tuple(
    key for key in sorted(SERVED) if key not in {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS}
)
"""Not those that make thousands of partitions when asked to: a client may ask for that."""


def random_attack(seed: int) -> Attack:
    return Attack(f"{PREFIX}{seed}", partial(_build, seed))


def _build(seed: int, scene: Scene) -> Send:
    """Half of them are damaged frames one by one, half a flood of one frame, damaged or not."""
    chance = scene.chance.fork(f"random {seed}")
    key = chance.choice(HARMLESS)
    frames = [_frame(scene, key) for _ in range(scene.target.share_of(FRAMES))]
    if chance.chance(0.5):
        return partial(_one_by_one, scene, frames)
    connections, is_reading = chance.choice([1, 5, 20]), chance.chance(0.5)
    chunk = b"".join(frames[: chance.choice([1, 10, 100])])
    return partial(pump, scene, chunk, connections, is_reading=is_reading)


def _frame(scene: Scene, key: ApiKey) -> bytes:
    chance = scene.chance
    key = key if chance.chance(0.7) else chance.choice(HARMLESS)
    filler = Filler(chance, Form(key, chance.choice(SERVED[key].versions)))
    frame = filler.frame()
    return frame if chance.chance(0.3) else mutate(frame, chance)


def _one_by_one(scene: Scene, frames: list[bytes]) -> None:
    """Answers are awaited briefly: half a request has none."""
    end_s = deadline_of(scene.target)
    for frame in frames:
        if time.monotonic() > end_s:
            return
        with noted(scene.outcome), Connection(scene.target.address, timeout_s=0.2) as connection:
            connection.send(frame)
            connection.read_frame()
            scene.outcome.note("answers")
