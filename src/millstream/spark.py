"""Spark sessions with `format("millstream")`: `from millstream.spark import session`.

By default Spark's workers run the `python3` on the PATH, with only its installed packages. These
functions make them run the calling interpreter, and register the data source. PySpark is imported
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
    """A Spark session that has `format("millstream")`: the active one, or a new one.

    `builder` is your own, with any settings of Spark; the other options are added to it. An
    existing `PYSPARK_PYTHON` is respected. Raises SparkNotReady.
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
    """Register `format("millstream")` in an existing session; returns it.

    Raises SparkNotReady if its workers run a Python without this package.
    """
    source = _import_source()
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:
        return spark  # Spark Connect: whether the source is there depends on the server
    _check_workers(context)
    if not _is_known(spark):
        spark.dataSource.register(source)
    return spark


def _is_known(spark: Any) -> bool:
    """Whether Spark has found it by itself, as the installed `pyspark_millstream`.

    Registering it again would log a warning, and there is no public API to check.
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
            f"{missing} is not installed, and millstream's Spark data source needs it:"
            " pip install 'millstream[spark]'"
        ) from None
    return MillstreamDataSource


def _check_workers(context: Any) -> None:
    """Check local workers; what is installed on other machines is not known here."""
    if not context.master.startswith("local"):
        return
    command = context.pythonExec
    found = shutil.which(command)
    if found == sys.executable or (found is not None and _has_package(found)):
        return
    raise SparkNotReady(
        f"Spark's workers run {found or command}, where millstream is not installed. Stop the"
        f" session and create it with millstream.spark.session(), or set"
        f" {_WORKER}={sys.executable} before it is created"
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
