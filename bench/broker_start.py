"""PF5: from the start of a process, or of a test's fixture, to the first acknowledged record."""

import compileall
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_systems import Kafka, Millstream, System, Systems, make_peer
from bench.broker_wire import (
    CREATE_TOPICS_VERSION,
    Topic,
    brokers_of,
    create_request,
    frame_of,
    produce_request_by_name,
    send_and_receive,
    takes_record,
)
from bench.measure import Row
from millstream import __path__ as package

STARTS = 3 if QUICK else 5
FIXTURE_STARTS = 5 if QUICK else 20
PROCESS_AT_MOST = 0.15
FIXTURE_AT_MOST = 0.1
GIVE_UP_S = 120.0
RETRY_S = 0.005
OLD_CREATE_TOPICS_VERSION = 2
OLD_PRODUCE_VERSION = 7
"""By name: the second request can be written before the first is answered."""
PROGRAM = Path(__file__).with_name("broker_fixture_start.py")


def measure(_systems: Systems) -> list[Row]:
    """The two that are running stay idle meanwhile."""
    ours, peer = process_starts(Millstream, started_peer)
    fixture = fixture_starts()
    what = "PF5 process start to first acknowledged record, s"
    rows = [lower_is_better("broker.start", what, ours, peer, at_most=PROCESS_AT_MOST)]
    what = f"PF5 fixture to first acknowledged record, imports included, median of {FIXTURE_STARTS}"
    rows.append(
        lower_is_better("broker.fixture", f"{what}, s", fixture, peer, at_most=FIXTURE_AT_MOST)
    )
    return rows


def started_peer(directory: Path) -> System:
    """Kafka is formatted before, and started once; ours needs no such step."""
    peer = make_peer(directory)
    if isinstance(peer, Kafka):
        peer.start()
        peer.stop()
    return peer


def process_starts(
    make_ours: Callable[[Path], System], make_peer: Callable[[Path], System], *, count: int = STARTS
) -> tuple[list[float], list[float]]:
    """Seconds of both, in turn."""
    _compile_package()
    ours: list[float] = []
    peer: list[float] = []
    for number in range(count):
        order = [(make_ours, ours), (make_peer, peer)]
        for make, seconds in order if number % 2 == 0 else reversed(order):
            seconds.append(_process_start(make))
    return ours, peer


def _compile_package() -> None:
    """As pip leaves an installed package.

    Without it a source tree is compiled again by every process where the environment says
    PYTHONDONTWRITEBYTECODE: a third of a start, and nothing that a user would see.
    """
    compileall.compile_dir(next(iter(package)), quiet=2)


def _process_start(make: Callable[[Path], System]) -> float:
    """Start on an empty data directory, or on the one that `make` leaves."""
    with tempfile.TemporaryDirectory(prefix="bench-start-", dir="build") as scratch:
        system = make(Path(scratch) / "it")
        with ThreadPoolExecutor(1) as watcher:
            begin = time.perf_counter()
            seen = watcher.submit(first_acknowledged, system.address)
            try:
                # In this thread: the process dies with the thread that started it.
                system.start()
                return seen.result() - begin
            finally:
                system.stop()


def first_acknowledged(address: str) -> float:
    """Create a topic, then send a record, each until it succeeds; return the time of success."""
    deadline = time.monotonic() + GIVE_UP_S
    topic: Topic | None = None
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            topic = topic or _created(address)
            if topic is not None and takes_record(address, topic, 0):
                return time.perf_counter()
        time.sleep(RETRY_S)
    raise TimeoutError(f"{address}: nothing acknowledged")


def _created(address: str) -> Topic | None:
    replicas = len(brokers_of(address))
    request = create_request("first", 1, replication_factor=replicas)
    result = send_and_receive(address, request, CREATE_TOPICS_VERSION).topics[0]
    return None if result.error_code else Topic("first", result.topic_id, 1)


def fixture_starts() -> list[float]:
    return [_fixture_start() for _ in range(FIXTURE_STARTS)]


def _fixture_start() -> float:
    """In a fresh interpreter: the clock runs from before the import."""
    create = frame_of(create_request("first", 1), OLD_CREATE_TOPICS_VERSION)
    produce = frame_of(produce_request_by_name("first", 0), OLD_PRODUCE_VERSION)
    command = [sys.executable, str(PROGRAM), create.hex(), produce.hex()]
    done = subprocess.run(command, capture_output=True, check=True)
    return float(done.stdout)
