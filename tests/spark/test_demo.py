"""The demo from the beginning to the end, small, in this session of Spark."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest
from examples.shop import run
from examples.shop.checks import Check, checks
from examples.shop.events import Day
from examples.shop.expected import Expected, Total, expected
from examples.shop.pipeline import DEAD_LETTERS, QUERIES, Pipeline
from examples.shop.processes import DemoFailed, running_shop
from examples.shop.progress import Story
from examples.shop.results import Results, results, rows
from examples.shop.terminal import Lines
from examples.shop.watching import play
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from kits.process.waiting_for import until
from millstream.testing import BrokerThread

ROOT = Path(__file__).parents[2]
DAY = Day(seed=11, event_count=20_000)


def test_everything_matches_and_one_cent_would_be_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory where an earlier demo left things; with the session that is there."""
    (tmp_path / "parquet" / "batch=99").mkdir(parents=True)
    (tmp_path / "parquet" / "batch=99" / "part.parquet").write_text("of another run")
    (tmp_path / "shop.png").write_text("of another run")
    compared: list[tuple[Expected, Results]] = []

    def noted(wanted: Expected, found: Results, *, late_rows: int) -> list[Check]:
        compared.append((wanted, found))
        return checks(wanted, found, late_rows=late_rows)

    monkeypatch.setattr(run, "running_spark", lambda _: nullcontext(spark))
    monkeypatch.setattr(run, "checks", noted)
    console = Console(width=200)
    with console.capture() as said:
        is_good = run.run(run.Plan(day=DAY, seconds=1, directory=tmp_path), console)
    assert is_good, said.get()
    assert "which led orders-0, was killed" in said.get()
    assert f"picture: {tmp_path / 'shop.png'}" in said.get()
    assert (tmp_path / "shop.png").read_bytes().startswith(b"\x89PNG")

    ((wanted, found),) = compared
    slot, total = min(wanted.totals.items())
    wanted.totals[slot] = Total(total.orders, total.units, total.revenue_cents + 1)
    in_topic, dead_letters, in_parquet = checks(wanted, found, late_rows=0)
    assert [text.partition(":")[0] for text in in_topic.differences] == ["books from 00"]
    assert in_parquet.differences == in_topic.differences
    assert dead_letters.is_good


class Interrupted(Pipeline):
    """Fails when everything of a batch is stored, and before Spark knows it."""

    def _store(self, batch: DataFrame, batch_id: int) -> None:
        super()._store(batch, batch_id)
        if batch.where("fault IS NOT NULL").count():
            raise RuntimeError("power cut")


def test_a_batch_that_comes_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Its dead letters are written twice, which their keys tell; its Parquet files are replaced."""
    with BrokerThread() as broker:
        servers = broker.bootstrap_servers
        run.prepare(servers, DAY)
        with running_shop(servers, DAY, seconds=4, log=tmp_path / "shop.log") as shop:
            story = Story(QUERIES, DAY.event_count, time.time(), reports=shop.reports)
            quiet = Lines(Console(quiet=True))
            with pytest.raises(DemoFailed, match="power cut"):
                play(spark, Interrupted(spark, servers, tmp_path), shop, story, quiet)
            play(spark, Pipeline(spark, servers, tmp_path), shop, story, quiet)
        found = results(servers, tmp_path)
        letter_count = sum(1 for _ in rows(servers, DEAD_LETTERS, ["key"]))
    compared = checks(expected(DAY), found, late_rows=story.late_rows)
    assert [one.differences for one in compared] == [[], [], []]
    assert letter_count > len(found.dead_letters), "nothing was written again"


@pytest.mark.slow
def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    """As a terminal sends it: to all processes of the group."""
    mark = f"DEMO_TEST={uuid.uuid4()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.shop", "--directory", tmp_path, "--seconds", "60"],
        cwd=ROOT,
        env={**os.environ, **dict([mark.split("=")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while "rows/s" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    assert len(processes_with(mark)) >= 7, "demo, keeper, three brokers, shop, Java"
    os.killpg(process.pid, signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert said.splitlines()[-1] == "stopped"
    assert complained == ""
    until(lambda: not processes_with(mark), "all processes are gone")


def processes_with(mark: str) -> list[str]:
    """Those that were started, by whomever, with this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().decode()[:200])
        except OSError:
            continue
    return found
