"""The programs of `docs/spark.md` run as printed and print what the page says."""

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.client.admin import NewTopic, or_raise
from millstream.client.blocking import client_for
from millstream.testing import BrokerThread

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def test_the_programs_print_what_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    program = r"```python\n(.*?)```\n+It prints\s+((?:`[^`]+`(?:\s+and\s+)?)+)"
    blocks = re.findall(program, PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") == 4
    names: dict[str, object] = {}
    with BrokerThread() as broker:
        topics = [NewTopic(name=name, partitions=2) for name in ("clicks", "pages")]
        made = client_for({"bootstrap.servers": broker.bootstrap_servers}).create_topics(topics)
        assert all(or_raise(one) for one in made.values())
        for code, said in blocks:
            places = {
                "localhost:9092": broker.bootstrap_servers,
                "checkpoints/": f"{tmp_path}/checkpoints/",
                "results/": f"{tmp_path}/results/",
            }
            for there, here in places.items():
                code = code.replace(there, here)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, names)
            assert printed.getvalue().splitlines() == re.findall(r"`([^`]*)`", said)
