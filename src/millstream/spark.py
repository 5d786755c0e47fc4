"""Spark sessions that find topics: `from millstream.spark import session`.

Spark's workers run the `python3` of the path, and only what that one has installed is found. These
functions let them run the interpreter that calls, and register the data source. PySpark is imported
when they are called.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkNotReady", "register", "session"]

_WORKER: Final = "PYSPARK_PYTHON"
_DRIVER: Final = "PYSPARK_DRIVER_PYTHON"
_NAME: Final = "millstream"
_CHECK_TIMEOUT_S: Final = 60.0


class SparkNotReady(Exception):
    """Spark cannot use the data source; the text says what to do."""


def session(
    *,
    master: str | None = None,
    app_name: str | None = None,
    conf: Mapping[str, str] | None = None,
    builder: "SparkSession.Builder | None" = None,
) -> "SparkSession":
    """A Spark session that has `format("millstream")`: a new one, or the one that is there.

    `builder` is one of yours, with all that Spark can be told; the other options are added to it.
    `PYSPARK_PYTHON` is respected where it is set. Raises SparkNotReady.
    """
    _import_source()
    from pyspark.sql import SparkSession

    made: Any = SparkSession.builder if builder is None else builder
    if master is not None:
        made = made.master(master)
    if app_name is not None:
        made = made.appName(app_name)
    for name, value in (conf or {}).items():
        made = made.config(name, value)
    os.environ.setdefault(_WORKER, sys.executable)
    os.environ.setdefault(_DRIVER, os.environ[_WORKER])
    return register(made.getOrCreate())


def register(spark: "SparkSession") -> "SparkSession":
    """Let a session that is there know `format("millstream")`; returns it.

    Raises SparkNotReady where its workers run a Python that does not have this package.
    """
    source = _import_source()
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:
        return spark  # of Spark Connect, whose server has the source or has it not
    _check_workers(context)
    if not _is_known(spark):
        spark.dataSource.register(source)
    return spark


def _is_known(spark: Any) -> bool:
    """Whether Spark has found it by itself, as the installed `pyspark_millstream`.

    To register it once more would be a warning in the log, and there is no public way to ask.
    """
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - see above
    return bool(manager.dataSourceExists(_NAME))


def _import_source() -> Any:
    try:
        from millstream.pipelines.spark.data_source import MillstreamDataSource
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == _NAME:
            raise
        raise SparkNotReady(
            f"{missing} is not installed; topics in Spark need it: pip install 'millstream[spark]'"
        ) from None
    return MillstreamDataSource


def _check_workers(context: Any) -> None:
    """Only on this machine: what others have installed is not known here."""
    if not context.master.startswith("local"):
        return
    command = context.pythonExec
    found = shutil.which(command)
    if found == sys.executable or (found is not None and _has_package(found)):
        return
    raise SparkNotReady(
        f"Spark's workers run {found or command}, which does not have millstream. Stop the session"
        f" and make it with millstream.spark.session(), or set {_WORKER}={sys.executable} before"
        " it is made"
    )


def _has_package(python: str) -> bool:
    done = subprocess.run(  # noqa: S603 - what Spark runs for every task
        [python, "-c", "import millstream.pipelines.spark.data_source"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_CHECK_TIMEOUT_S,
        check=False,
    )
    return done.returncode == 0
