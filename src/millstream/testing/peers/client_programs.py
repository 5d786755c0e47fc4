"""The programs of foreign clients: how each is built and started.

Their sources are in `tests/interop/clients`, whose README has the contract,
one folder for each language; builds are in the cache of peers.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millstream.testing.peers.go_programs import go_program
from millstream.testing.peers.java_programs import java_classes, java_command
from millstream.testing.peers.kafka import kafka_jars
from millstream.testing.peers.node_programs import node_program
from millstream.testing.peers.runtimes import find_runtime

PYTHON_PROGRAMS: Final[Mapping[str, str]] = {
    "kcat": "kcat",
    "confluent-kafka": "confluent",
    "kafka-python": "kafka_python",
    "aiokafka": "aiokafka",
}
RUNTIMES: Final[Mapping[str, tuple[str, ...]]] = {
    "kcat": ("kcat",),
    "java": ("java", "javac", "mvn"),
    "franz-go": ("go",),
    "kafkajs": ("node", "npm"),
}
"""Programs that must be installed; the Python clients come with our own environment."""


def client_command(client: str, *, sources: Path, cache: Path) -> list[str]:
    """The command that starts a client's program, which is built first where needed."""
    if client == "franz-go":
        return [str(go_program(cache, "franz-go", sources / "go"))]
    if client == "kafkajs":
        program = node_program(cache, "kafkajs", sources / "node") / "program.js"
        return [str(find_runtime("node")), str(program)]
    if client == "java":
        return _java(sources / "java", cache)
    name = PYTHON_PROGRAMS[client]
    return [sys.executable, str(sources / "python" / f"{name}_program.py")]


def _java(folder: Path, cache: Path) -> list[str]:
    jars = kafka_jars(cache)
    sources = [*(folder / "contract").glob("*.java"), *(folder / "kafka").glob("*.java")]
    classes = java_classes(cache, "kafka-program", sources, jars)
    logging = folder / "log4j2.properties"
    return java_command("KafkaProgram", classes=classes, jars=jars, logging=logging)
