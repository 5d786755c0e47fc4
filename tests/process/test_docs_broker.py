"""What `docs/broker.md` shows and lists: its programs run, its tables say what the code says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.requests.registry import SERVED
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.testing import broker as broker  # the fixture itself
from millstream.testing.broker_thread import BrokerThread
from millstream.wire.catalogue import api_name

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
ADDRESS = "localhost:9092"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def section(title: str) -> str:
    _, _, rest = PAGE.read_text().partition(f"## {title}\n")
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("client", "printed"), [("confluent_kafka", "b'click'"), ("kafka", "[b'hello']")]
)
def test_the_clients_first_records(broker: BrokerThread, client: str, printed: str) -> None:
    (code,) = (one for one in programs() if one.startswith(f"from {client} import"))
    assert ADDRESS in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace(ADDRESS, broker.bootstrap_servers)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed


def test_a_test_with_a_restart(tmp_path: Path) -> None:
    """The example's own functions are its reader's: here they note where they were sent."""
    (code,) = (one for one in programs() if "survives_a_restart" in one)
    places: list[str] = []
    scope: dict[str, Any] = {"send_something": places.append, "expect_something": places.append}
    exec(code, scope)
    scope["test_survives_a_restart"](tmp_path)
    first, second = places
    assert first == second


def test_every_api_is_listed() -> None:
    rows = re.findall(r"^\| \w+ \| (.*) \|$", section("Supported APIs"), re.MULTILINE)
    listed = re.sub(r" \(.*?\)", "", ", ".join(rows)).split(", ")
    assert sorted(listed) == sorted(api_name(key) for key in SERVED)


def test_limits_name_keys_that_exist() -> None:
    cells = re.findall(r"^\|[^|]*\|([^|]*)\|[^|]*\|$", section("Limits"), re.MULTILINE)
    keys = [key for cell in cells for key in re.findall(r"`([a-z.]+)`", cell)]
    assert keys
    assert set(keys) <= set(BROKER_KEYS)
