"""The broker that users' tests start: what it says of settings, and what it costs to load."""

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.model.config.errors import InvalidConfig
from millstream.testing import BrokerThread


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("num.partition", "'num.partition' is unknown and ignored; did you mean num.partitions?"),
        ("num.io.threads", "num.io.threads has no effect here"),
    ],
)
def test_a_setting_without_effect_is_a_warning_at_the_callers_line(name: str, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as seen:
        BrokerThread({name: 3})
    assert [Path(one.filename).name for one in seen] == [Path(__file__).name]


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        BrokerThread({"num.partitions": "many"})


def test_settings_that_work_are_not_warned_about() -> None:
    with BrokerThread({"num.partitions": 3, "auto.create.topics.enable": False}) as broker:
        assert broker.port


@pytest.mark.parametrize("is_on", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(is_on: bool) -> None:
    script = (
        "import gc, sys\n"
        f"{'gc.enable()' if is_on else 'gc.disable()'}\n"
        "from millstream.testing import BrokerThread\n"
        "print(gc.isenabled())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(is_on)
