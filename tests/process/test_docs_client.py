"""What `docs/client.md` shows: its program runs, and its table of errors is complete."""

import re
import subprocess
import sys
from pathlib import Path

from millstream.client import errors
from millstream.client.produce import errors as producing_errors
from millstream.testing import broker as broker  # the fixture itself
from millstream.testing.broker_thread import BrokerThread

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_programs_print_what_the_page_says(broker: BrokerThread) -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for _ in range(2):  # the second time the topic is there
        assert run(first, broker) == ("orders 2\n0 0\nNone\n", "")
    assert "It prints `orders 2`, `0 0` and `None`" in PAGE.read_text()
    assert run(second, broker) == ("3\n3\n", "")
    assert "It prints `3` twice" in PAGE.read_text()


def run(code: str, broker: BrokerThread) -> tuple[str, str]:
    """What it writes to its two outputs."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace("localhost:9092", at(broker))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.stderr


def at(broker: BrokerThread) -> str:
    return broker.bootstrap_servers


def test_every_error_that_a_user_may_meet_is_listed() -> None:
    kinds = {
        name
        for name, kind in (vars(errors) | vars(producing_errors)).items()
        if isinstance(kind, type) and issubclass(kind, errors.ClientError)
    }
    table = PAGE.read_text().partition("## Errors")[2].partition("## Settings")[0]
    listed = set(re.findall(r"`([A-Z]\w+)`", table))
    assert kinds == listed


def test_the_commands_are_told_whole() -> None:
    from millstream.cli import consume, failure
    from millstream.client.fetch.arrow import FIELDS

    part = PAGE.read_text().partition("## On the command line")[2]
    codes = {value for name, value in vars(failure).items() if name.startswith("EXIT_")}
    assert {int(one) for one in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)} == codes | {0}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", part, re.MULTILINE)) == set(consume.Format)
    for name in (*FIELDS, "keyBase64", "valueBase64"):
        assert f"`{name}`" in part
