"""What a running broker's scrape has is what `docs/metrics.md` lists."""

import re
import urllib.request
from pathlib import Path

from kits.process.wire_client import WireClient, build_batch
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.peers.kafka import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_metric_is_listed_with_its_type() -> None:
    listed = dict(
        re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", PAGE.read_text(), re.M)
    )
    (port,) = free_ports(1)
    with BrokerThread({"metrics.port": str(port)}) as broker:
        with WireClient(broker.bootstrap_servers) as client:
            client.create_topic("events")
            client.produce("events", build_batch([(b"k", b"v")]))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    shown = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert shown.items() <= listed.items()
    assert {name for name in listed.keys() - shown.keys() if name.startswith("millstream_")} <= {
        "millstream_connections_refused_total",  # by reason: there is none before the first
        "millstream_groups",  # by state, as well
        "millstream_group_committed_offset",  # by group
        "millstream_group_lag",
    }
