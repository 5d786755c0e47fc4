"""The demo says in one line what is missing, what has ended, and that nothing goes on."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from examples.shop import processes, watching
from examples.shop.events import Day
from examples.shop.processes import DemoFailed, Shop, require_java, running_brokers, running_shop
from examples.shop.progress import Story
from examples.shop.run import only_here
from examples.shop.terminal import Lines
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console


def java_of(home: Path, version: str) -> Path:
    """A Java that can only tell its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-07-16' >&2\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize("version", ["17.0.12", "21", "25.0.1"])
def test_a_java_that_spark_takes(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, version)))
    said: list[str] = []
    require_java(said.append)
    assert said == []


def test_a_java_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "1.8.0_402")))
    with pytest.raises(DemoFailed, match=r"needs Java 17 or newer; .* is 'openjdk .*1\.8\.0"):
        require_java(print)


def test_a_java_that_is_not_where_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DemoFailed, match=r"needs Java 17 or newer: .*No such file"):
        require_java(print)


def test_no_java_and_nobody_who_may_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with pytest.raises(DemoFailed, match=r"java is not installed .*apt-get install openjdk-17"):
        require_java(said.append)
    assert said == ["no Java here; installing it, if that is allowed ..."]


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    with only_here(tmp_path):
        (tmp_path / "work").touch()
        with pytest.raises(DemoFailed, match="another demo is running in"), only_here(tmp_path):
            pass
        assert (tmp_path / "work").exists()
    with only_here(tmp_path):
        assert not (tmp_path / "work").exists()


def test_brokers_that_do_not_start_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_KERNELS", "no such kernels")
    with (
        pytest.raises(DemoFailed, match=r"the brokers did not start:\n.*no such kernels"),
        running_brokers(tmp_path / "brokers"),
    ):
        pass


def test_a_shop_without_a_broker_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 20)
    log = tmp_path / "shop.log"
    with running_shop("no address", Day(1, 10), seconds=0, log=log) as shop:
        with pytest.raises(DemoFailed, match=r"the shop ended with 1:\n(.*\n)*.*no address"):
            shop.open_next_morning()
        assert shop.reports == []


def shop_that_sleeps() -> Shop:
    return cast(Shop, SimpleNamespace(check=lambda: None, reports=[]))


def query(*, is_active: bool, reason: str | None = None) -> StreamingQuery:
    fake = SimpleNamespace(name="totals", isActive=is_active, exception=lambda: reason)
    return cast(StreamingQuery, fake)


def watch(one: StreamingQuery, shop: Shop) -> None:
    story = Story(("totals",), 10, 0.0)
    watching.watch([one], shop, story, Lines(Console(quiet=True)))


def test_a_query_that_ends_is_named_with_its_reason() -> None:
    with pytest.raises(DemoFailed, match="query totals has ended: TOPIC_RECREATED"):
        watch(query(is_active=False, reason="TOPIC_RECREATED"), shop_that_sleeps())


def test_ctrl_c_ends_it_between_two_looks() -> None:
    """Not in the middle of a call to Java; the second one is ignored, and handlers come back."""
    before = signal.getsignal(signal.SIGINT)
    with watching.noted_interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_it_does_not_hang_when_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STALLED_S", 0.01)
    monkeypatch.setattr(watching, "POLL_S", 0.001)
    with pytest.raises(DemoFailed, match="nothing happened for 0 seconds"):
        watch(query(is_active=True), shop_that_sleeps())


def test_it_does_not_go_on_without_the_shop(tmp_path: Path) -> None:
    log = tmp_path / "shop.log"
    log.write_text("lost its key")
    ended = subprocess.Popen(
        [sys.executable, "-c", "raise SystemExit(3)"], stdout=subprocess.PIPE, text=True
    )
    with ended:
        ended.wait(20)
        with pytest.raises(DemoFailed, match="the shop ended with 3:\nlost its key"):
            watch(query(is_active=True), Shop(ended, log))
