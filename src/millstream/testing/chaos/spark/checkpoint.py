"""A query's checkpoint and the manifest of its file sink, read without Spark."""

import json
from pathlib import Path
from typing import Any, Final

COMPACT: Final = ".compact"


class Checkpoint:
    """The checkpoint of one query."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def logged(self) -> int:
        """The newest batch of the offset log; -1 without any."""
        return _newest_batch(self.directory / "offsets")

    @property
    def committed(self) -> int:
        """The newest batch of the commit log; -1 without any."""
        return _newest_batch(self.directory / "commits")

    def ends(self) -> dict[int, dict[str, Any]]:
        """By batch: the offset at which it ends."""
        return {
            batch: json.loads(path.read_text().splitlines()[2])
            for batch, path in _batches(self.directory / "offsets").items()
        }

    def positions(self, batch: int, topic: str) -> dict[int, int]:
        """By partition: where a batch ends."""
        text = (self.directory / "offsets" / str(batch)).read_text()
        found = json.loads(text.splitlines()[2]).get(topic, {})
        return {int(partition): offset for partition, offset in found.items()}


class Manifest:
    """Which files of a directory are valid: a query that died may have left others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "_spark_metadata"

    def has(self, batch: int) -> bool:
        names = (str(batch), f"{batch}{COMPACT}")
        return any((self._directory / name).exists() for name in names)

    def files(self) -> list[Path]:
        """The files in no order; a file of several batches would be there several times."""
        logs = _batches(self._directory)
        compacted = [batch for batch, path in logs.items() if path.name.endswith(COMPACT)]
        first = max(compacted, default=-1)
        texts = [path.read_text() for batch, path in logs.items() if batch >= first]
        entries = [json.loads(line) for text in texts for line in text.splitlines()[1:]]
        return [Path(entry["path"].removeprefix("file:")) for entry in entries]


def _batches(directory: Path) -> dict[int, Path]:
    """Files named by a batch; those that are being written are not among them."""
    if not directory.exists():
        return {}
    paths = {path.name.removesuffix(COMPACT): path for path in directory.iterdir()}
    return {int(name): path for name, path in paths.items() if name.isdecimal()}


def _newest_batch(directory: Path) -> int:
    return max(_batches(directory), default=-1)
