"""Writers that outlive the task which created them.

A Python worker of Spark runs task after task, and a stream has tasks many times a second. A writer
for each would request a producer id for each, which brokers remember for a day and for each
partition. So a worker keeps its writers, and tasks reuse them.
"""

import os
from collections import OrderedDict
from typing import Final

from millstream.client.blocking import client_for
from millstream.client.column_writer import ColumnWriter
from millstream.client.settings import ClientSettings

IDLE_MAX: Final = 8
"""Writers that wait for a task, per process: a worker serves one task at a time, so more means
that it serves queries with different settings."""


class WriterPool:
    """The pool of one process; a forked child begins with an empty one."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: OrderedDict[ClientSettings, ColumnWriter] = OrderedDict()

    def take(self, settings: ClientSettings) -> ColumnWriter:
        """A writer for exclusive use, with nothing unsent."""
        self._notice_fork()
        writer = self._idle.pop(settings, None)
        if writer is None:
            writer = client_for(settings).column_writer(creates_topics=True)
        # Between two tasks there can be hours. Records for a topic that was deleted would wait
        # until they time out, and no request would create it.
        writer.doubt_topics()
        return writer

    def give_back(self, settings: ClientSettings, writer: ColumnWriter) -> None:
        """Only after a flush; a writer that failed is aborted instead."""
        self._notice_fork()
        surplus = [self._idle.pop(settings, None)]
        self._idle[settings] = writer
        if len(self._idle) > IDLE_MAX:
            surplus.append(self._idle.popitem(last=False)[1])
        for one in surplus:
            if one is not None:
                one.abort()

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._idle.clear()


POOL: Final = WriterPool()
