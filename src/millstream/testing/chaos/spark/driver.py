"""The Spark program that chaos kills: it runs queries until then.

    python -m millstream.testing.chaos.spark.driver DIRECTORY CONTROL MASTER SETTINGS

Commands are lines of JSON on its standard input; it reports to the control server. When its
input ends, so does it.
"""

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.testing.chaos.spark.control import Hook
from millstream.testing.chaos.spark.query import SETTINGS, QuerySpec, register_hooks, start_query
from millstream.testing.spark.sessions import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

READY: Final = "ready"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
PROGRAM: Final = "driver"
"""The name under which the program itself reports, instead of a query."""


class Program:
    """The session and its queries."""

    def __init__(self, session: "SparkSession", control: str) -> None:
        self._session = session
        self._control = control
        self._queries: dict[str, StreamingQuery] = {}

    def execute(self, command: dict[str, dict[str, object]]) -> None:
        """Execute one command: `start` a query, or `stop` it."""
        match command:
            case {"start": given}:
                spec = QuerySpec.from_dict(given)
                try:
                    query = start_query(self._session, spec)
                except Exception as error:  # noqa: BLE001 - reported
                    Hook(self._control, spec.name).report(FAILED, why=str(error))
                    return
                self._queries[spec.name] = query
                watch = threading.Thread(target=self._watch, args=(spec.name, query), daemon=True)
                watch.start()
            case {"stop": name}:
                self._queries.pop(str(name)).stop()

    def _watch(self, name: str, query: "StreamingQuery") -> None:
        hook = Hook(self._control, name)
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - reported
            hook.report(FAILED, why=str(error))
        else:
            hook.report(STOPPED)


def main(directory: str, control: str, master: str, settings: str) -> None:
    """Run until the input ends."""
    own = SETTINGS | json.loads(settings)
    session = local_session(Path(directory), master=master, settings=own)
    register_hooks(session)
    program = Program(session, control)
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 - the JVM is to be killed too
    Hook(control, PROGRAM).report(READY, jvm=gateway.proc.pid)
    for line in sys.stdin:
        program.execute(json.loads(line))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
