"""The attacker as a process of its own: its work must not slow down what is measured.

    python -m millstream.testing.chaos.hostile.attacker NAME JSON

It builds what it will send, prints a line, and waits for one; then it attacks, and prints its
outcome as JSON. It runs with a lower priority than the brokers: on two cores it would otherwise be
measured how much CPU an attacker takes from them, which no broker can prevent.
"""

import json
import os
import resource
import sys
from contextlib import suppress
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.hostile.attack import Outcome, Scene, Target
from millstream.testing.chaos.hostile.catalogue import attack_named

NICENESS: Final = 10


def main(arguments: list[str]) -> int:
    name, target = arguments[0], Target(**json.loads(arguments[1]))
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    scene = Scene(target, SeededRandomness(f"{target.seed}/{name}"), Outcome())
    send = attack_named(name).build(scene)
    _print_line("ready: built")
    sys.stdin.readline()
    send()
    _print_line(scene.outcome.to_json())
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
