"""The probe and the attacker as processes of a node."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millstream.testing.chaos.cluster.processes import NodeProcess
from millstream.testing.chaos.hostile.attack import Outcome, Target
from millstream.testing.chaos.hostile.probe import ProbeTask
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node

BUILD_MAX_S: Final = 120.0
ATTACK_MAX_S: Final = 180.0
"""An attacker that waits for answers ends some time after its own limit."""


class AttackerProcess(NodeProcess):
    """Built, then told to begin; its outcome is the last line that it prints."""

    def __init__(self, node: Node, directory: Path, name: str, target: Target) -> None:
        module = ["-m", "millstream.testing.chaos.hostile.attacker", name, target.to_json()]
        super().__init__(node, directory, [sys.executable, *module])

    def wait_ready(self) -> None:
        line = self._read_line(BUILD_MAX_S)
        if not line.startswith("ready: "):
            raise ChaosFailed(f"the attacker did not build (printed {line!r})\n{self.tail()}")

    def begin(self) -> None:
        if self._process is None or self._process.stdin is None:
            raise ChaosFailed("no attacker is running")
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def wait_outcome(self, is_enough: Callable[[], bool]) -> Outcome:
        """Until it has ended, or it is enough; then what it had is unknown."""
        end_s = time.monotonic() + ATTACK_MAX_S
        while time.monotonic() < end_s and not is_enough():
            line = self._read_line(0.1)
            if line.startswith("{"):
                return Outcome.from_json(line)
            if self._process is not None and self._process.poll() is not None:
                raise ChaosFailed(f"the attacker ended without an outcome\n{self.tail()}")
        return Outcome(violations=["the attack was ended: too much memory, or too long"])


class ProbeProcess(NodeProcess):
    """Runs as long as the scene."""

    prints_ready_line = False

    def __init__(self, node: Node, directory: Path, task: ProbeTask) -> None:
        module = ["-m", "millstream.testing.chaos.hostile.probe", task.to_json()]
        super().__init__(node, directory, [sys.executable, *module])
