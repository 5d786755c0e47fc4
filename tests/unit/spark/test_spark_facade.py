"""`millstream.spark`, as far as no JVM is needed for it."""

import os
import subprocess
import sys
from typing import Any

import pytest

from millstream.spark import SparkNotReady, register, session

PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class Builder:
    """Notes what it is told, and what its session would find in the environment."""

    def __init__(self, made: object) -> None:
        self.told: list[tuple[str, ...]] = []
        self.environment: dict[str, str | None] = {}
        self._made = made

    def master(self, name: str) -> "Builder":
        self.told.append(("master", name))
        return self

    def appName(self, name: str) -> "Builder":  # noqa: N802 - Spark's
        self.told.append(("app", name))
        return self

    def config(self, name: str, value: str) -> "Builder":
        self.told.append((name, value))
        return self

    def getOrCreate(self) -> object:  # noqa: N802 - Spark's
        self.environment = {name: os.environ.get(name) for name in PYTHONS}
        return self._made


class Context:
    """Of a session whose workers run what it says."""

    def __init__(self, python: str, master: str = "local[*]") -> None:
        self.pythonExec = python
        self.master = master


class Classic:
    """A session with a JVM that has found the data source."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context
        self._jsparkSession = self

    def sessionState(self) -> "Classic":  # noqa: N802 - Spark's
        return self

    dataSourceManager = sessionState  # noqa: N815 - Spark's

    def dataSourceExists(self, name: str) -> bool:  # noqa: N802 - Spark's
        return name == "millstream"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PYTHONS:
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


def made_with(made: Any, **options: Any) -> tuple[Any, Builder]:
    builder = Builder(made)
    given: Any = builder
    return session(builder=given, **options), builder


def test_workers_run_the_interpreter_that_calls() -> None:
    connect = object()  # one of Spark Connect has no context, and its server's workers are its own
    spark, builder = made_with(
        connect, master="local[2]", app_name="clicks", conf={"spark.ui.enabled": "false"}
    )
    assert spark is connect
    assert builder.environment == dict.fromkeys(PYTHONS, sys.executable)
    assert builder.told == [
        ("master", "local[2]"),
        ("app", "clicks"),
        ("spark.ui.enabled", "false"),
    ]


def test_python_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/there/python")
    _, builder = made_with(object())
    assert builder.environment == dict.fromkeys(PYTHONS, "/opt/there/python")


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_session_whose_workers_cannot_import_the_package_is_refused(python: str) -> None:
    spark: Any = Classic(Context(python))
    with pytest.raises(SparkNotReady, match="where millstream is not installed") as told:
        register(spark)
    assert f"PYSPARK_PYTHON={sys.executable}" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "context",
    [Context(sys.executable), Context("no-such-python", "spark://host:7077")],
    ids=["ours", "on other machines"],
)
def test_session_whose_workers_can_or_may_is_taken(context: Context) -> None:
    spark: Any = Classic(context)
    assert register(spark) is spark


def test_without_pyspark_one_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import millstream.spark as s; s.session()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "pyspark is not installed" in last
    assert "pip install 'millstream[spark]'" in last
    assert "During handling" not in done.stderr
