"""How a broker starts: what it may load before it is ready, and what it says when it cannot."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.kernels.kernel_twins import needs_compiled
from kits.process.broker_process import broker_process
from kits.process.wire_client import WireClient, build_batch

TOO_HEAVY = {
    "crc32c",
    "email",
    "hypothesis",
    "importlib.metadata",
    "kazoo",
    "lz4",
    "millstream.broker.groups.gauges",
    "millstream.broker.start_failure",
    "millstream.observe.http",
    "millstream.storage.compaction.work",
    "numpy",
    "pyarrow",
    "pydantic",
    "pyspark",
    "pytest",
    "rich",
    "tempfile",
    "typer",
    "unittest",
    "xml",
    "zipfile",
}
"""Each costs a start more than it is worth before the first client has come."""
MODULES_MAX = 385
"""Of all kinds, the interpreter's own included; each takes a quarter of a millisecond or more. Our
packages do not count: they hold nothing but a docstring, and cost a tenth of that."""

STARTED = """
import os, signal, sys
class Output:
    def __init__(self, stream): self.stream = stream
    def write(self, text):
        self.stream.write(text)
        if text.startswith("ready: "):
            self.stream.write(" ".join(sys.modules) + "\\n")
            self.stream.write(f"{gc_is_on()}\\n")
            os.kill(os.getpid(), signal.SIGTERM)
    def flush(self): self.stream.flush()
def gc_is_on():
    import gc
    return gc.isenabled()
sys.stdout = Output(sys.stdout)
from millstream.cli.main import run
run()
"""


def settings_file(directory: Path, **changed: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "data"),
        **{name.replace("_", "."): value for name, value in changed.items()},
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def start(path: Path) -> subprocess.CompletedProcess[str]:
    """One that does not come up."""
    return subprocess.run(
        [sys.executable, "-m", "millstream", "broker", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def lines_of(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "stderr").read_text().splitlines()]


@needs_compiled("batches", "crc")
def test_a_broker_loads_nothing_heavy_before_it_is_ready(tmp_path: Path) -> None:
    command = ["broker", "--config", str(settings_file(tmp_path, metrics_port="0"))]
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *command],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env={name: text for name, text in os.environ.items() if name != "MILLSTREAM_KERNELS"},
    )
    _, modules, gc_is_on = done.stdout.splitlines()
    loaded = set(modules.split())
    assert {name.partition(".")[0] for name in loaded} & TOO_HEAVY == set()
    assert loaded & TOO_HEAVY == set()
    ours = {name for name in loaded if name.partition(".")[0] == "millstream"}
    packages = {name.rpartition(".")[0] for name in ours}
    assert len(loaded - packages) <= MODULES_MAX
    assert gc_is_on == "True"


@needs_compiled("batches", "crc")
def test_the_fixtures_broker_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from millstream.testing import BrokerThread\n"
        "from pathlib import Path\n"
        f"with BrokerThread(directory=Path({str(tmp_path)!r})):\n"
        "    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    allowed = {"tempfile"}  # where its data is
    assert {name.partition(".")[0] for name in loaded} & (TOO_HEAVY - allowed) == set()
    assert loaded & (TOO_HEAVY - allowed) == set()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"listeners": "PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"},
            "listeners: a listener name is given twice",
        ),
        ({"listeners": "127.0.0.1:0"}, "listeners: '127.0.0.1:0' is not NAME://host:port"),
        ({"advertised.listeners": "PLAINTEXT://a:0x"}, "advertised.listeners: "),
    ],
)
def test_listeners_that_cannot_be_are_bad_settings(
    tmp_path: Path, changed: dict[str, str], told: str
) -> None:
    done = start(settings_file(tmp_path, **changed))
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_settings_file_that_does_not_exist_is_named_without_an_errno(tmp_path: Path) -> None:
    done = start(tmp_path / "absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"millstream: {tmp_path / 'absent'}: No such file or directory\n"


def test_a_taken_metrics_port_is_named(tmp_path: Path) -> None:
    with taken_port() as port:
        done = start(settings_file(tmp_path, metrics_port=str(port)))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the broker cannot start: metrics.port {port} on 127.0.0.1: " in done.stderr
    assert "Errno" not in done.stderr


def test_a_single_broker_warns_of_settings_for_several(tmp_path: Path) -> None:
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "1",
    }
    with broker_process(tmp_path, settings):
        pass
    warned = [str(one["problem"]) for one in lines_of(tmp_path) if one["level"] == "WARN"]
    assert [one.partition(" ")[0] for one in warned] == [
        "default.replication.factor",
        "min.insync.replicas",
    ]


def test_a_single_broker_with_defaults_warns_of_nothing(tmp_path: Path) -> None:
    with broker_process(tmp_path):
        pass
    assert [one for one in lines_of(tmp_path) if one["level"] != "INFO"] == []


def test_one_log_directory_that_cannot_be_made_is_told_and_the_others_serve(
    tmp_path: Path,
) -> None:
    """No directory can be created in /proc: it is neither a file nor can it be repaired."""
    good = [str(tmp_path / "one"), str(tmp_path / "two")]
    bad = "/proc/no-such-directory"
    with (
        broker_process(tmp_path, {"log.dirs": f"{good[0]},{bad},{good[1]}"}) as running,
        WireClient(running.bootstrap_servers) as client,
    ):
        client.create_topic("events", 4)
        client.produce("events", build_batch([(b"k", b"v")]))
        assert client.fetch("events", 0).responses[0].partitions[0].high_watermark == 1
    told = [one for one in lines_of(tmp_path) if one["message"] == "log directory offline"]
    assert [one["directory"] for one in told] == [bad]


@pytest.mark.parametrize("bad", ["/proc/no-such-directory", "a file"])
def test_without_any_usable_log_directory_the_first_is_blamed(tmp_path: Path, bad: str) -> None:
    if bad == "a file":
        bad = str(tmp_path / "file")
        Path(bad).touch()
    done = start(settings_file(tmp_path, log_dirs=bad))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"log directory {bad}" in done.stderr
