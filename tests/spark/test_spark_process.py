"""What our part costs the processes that Spark plans and commits in, which it uses again."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, StructType

from kits.broker.garbage_kit import as_never_frozen
from millstream.pipelines.spark.data_source import MillstreamDataSource

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
READ = {**SERVERS, "subscribe": "t"}
WRITE = {**SERVERS, "topic": "t"}
VALUE = StructType().add("value", BinaryType())
MAKE = (
    "import sys\n"
    "from pyspark.sql.types import BinaryType, StructType\n"
    "from millstream.pipelines.spark.data_source import MillstreamDataSource\n"
    f"read, write = MillstreamDataSource({READ!r}), MillstreamDataSource({WRITE!r})\n"
    "schema = StructType().add('value', BinaryType())\n"
)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from as_never_frozen(monkeypatch)


def make_all() -> None:
    source, sink = MillstreamDataSource(READ), MillstreamDataSource(WRITE)
    source.schema()
    source.reader(VALUE)
    source.streamReader(VALUE)
    sink.writer(VALUE, overwrite=False)
    sink.streamWriter(VALUE, overwrite=False)


@pytest.mark.usefixtures("frozen")
def test_a_process_that_spark_uses_again_does_not_search_modules_for_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It searches after every micro-batch, and that was most of what it did for one."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    before = gc.get_freeze_count()
    make_all()
    assert gc.get_freeze_count() > before
    assert gc.isenabled()


@pytest.mark.usefixtures("frozen")
def test_nobody_elses_process_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    before = gc.get_freeze_count()
    make_all()
    assert gc.get_freeze_count() == before
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("made", "spared"),
    [
        (
            "writer = write.streamWriter(schema, overwrite=False)\n"
            "from millstream.pipelines.spark.task_report import TaskIdentity, TaskWritten\n"
            "writer.commit([TaskWritten(identity=TaskIdentity(task=0, attempt=0))], 0)\n",
            ("pyarrow", "asyncio", "millstream.client.cluster"),
        ),
        (
            "read.streamReader(schema)\n",
            (
                "millstream.client.admin",
                "millstream.client.group_offsets",
                "millstream.client.fetch.fetcher",
                "millstream.kernels.columns",
            ),
        ),
    ],
    ids=["commit", "source"],
)
def test_what_is_not_needed_is_not_loaded(made: str, spared: tuple[str, ...]) -> None:
    show = f"print(*(name for name in {spared!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", MAKE + made + show], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
