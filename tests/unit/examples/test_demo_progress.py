"""What the demo shows while it runs and afterwards, from what Spark tells."""

from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from examples.shop.events import DAY_START
from examples.shop.expected import Slot, Total
from examples.shop.picture import draw
from examples.shop.progress import Story, batches_of
from examples.shop.terminal import Lines, Screen, line, view
from examples.shop.traffic import OrdersProgress
from rich.console import Console

STARTED_S = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()


def progress(**changed: Any) -> dict[str, Any]:
    """As in Spark 4.3, without what nobody looks at."""
    usual = {
        "name": "totals",
        "batchId": 3,
        "timestamp": "2026-05-01T12:00:10.500Z",
        "batchDuration": 2000,
        "numInputRows": 100,
        "durationMs": {"addBatch": 1500, "triggerExecution": 2000},
        "eventTime": {"max": "2026-03-02T04:05:00.000Z", "watermark": "2026-03-02T03:35:00.000Z"},
        "stateOperators": [{"numRowsDroppedByWatermark": 2}],
        "sources": [
            {
                "endOffset": '{"orders": {"0": 60, "1": 40}, "#millstream {\\"v\\":1}": {}}',
                "latestOffset": '{"orders": {"0": 75, "1": 45}}',
            }
        ],
    }
    return usual | changed


def story() -> Story:
    reports = [
        (STARTED_S + at_s, OrdersProgress(at_s * 10, DAY_START.timestamp() + 3600))
        for at_s in (5, 12)
    ]
    return Story(("orders", "totals"), 120, STARTED_S, reports=reports)


def test_a_batch_says_how_far_the_query_is() -> None:
    (batch,) = batches_of([progress()])
    assert (batch.query, batch.batch_id, batch.rows, batch.rows_per_s) == ("totals", 3, 100, 50.0)
    assert (batch.read, batch.lag, batch.late_rows) == (100, 20, 2)
    assert batch.ended_s == STARTED_S + 12.5
    assert batch.watermark == datetime(2026, 3, 2, 3, 35, tzinfo=UTC)


def test_a_stateless_query_has_no_watermark() -> None:
    (batch,) = batches_of([progress(eventTime={}, stateOperators=[])])
    assert (batch.watermark, batch.late_rows) == (None, 0)


def test_the_first_batch_after_a_restart_does_not_know_its_lag() -> None:
    (source,) = progress()["sources"]
    (batch,) = batches_of([progress(sources=[source | {"latestOffset": "None"}])])
    assert (batch.read, batch.lag) == (100, None)
    seen = story()
    seen.batches.append(batch)
    assert line(seen, STARTED_S).endswith("lag -")


def test_a_trigger_without_a_batch_is_left_out() -> None:
    """It has the number of the batch that is to come, which would then seem to be known."""
    assert batches_of([progress(durationMs={"latestOffset": 3, "triggerExecution": 4})]) == []


def test_the_day_is_over_when_both_have_read_it_and_the_watermark_has_passed() -> None:
    seen = story()
    seen.batches += batches_of([progress()])
    assert not seen.is_read(100), "only one of them has"
    seen.batches += batches_of([progress(name="orders", eventTime={})])
    assert seen.is_read(100)
    assert not seen.is_read(101)
    assert seen.has_passed(datetime(2026, 3, 2, 3, 35, tzinfo=UTC))
    assert not seen.has_passed(datetime(2026, 3, 2, 3, 36, tzinfo=UTC))


def test_a_line_tells_it_all() -> None:
    seen = story()
    seen.batches += batches_of([progress()])
    assert line(seen, STARTED_S + 13) == (
        "   13 s | shop 01:00 120 written | orders 0 read, - rows/s, -, lag - | "
        "totals 100 read, 50 rows/s, 2.0 s, lag 20"
    )


def test_outside_of_a_terminal_there_is_a_line_now_and_then() -> None:
    output = StringIO()
    with view(Console(file=output)) as shown:
        assert isinstance(shown, Lines)
        for second in range(12):
            shown.show(story(), STARTED_S + second)
    assert [text.split(" s |")[0].strip() for text in output.getvalue().splitlines()] == [
        "0", "5", "10",
    ]  # fmt: skip


def test_in_a_terminal_there_is_a_table_that_moves() -> None:
    output = StringIO()
    seen = story()
    seen.batches += batches_of([progress()])
    with view(Console(file=output, force_terminal=True, width=120)) as shown:
        assert isinstance(shown, Screen)
        shown.show(seen, STARTED_S + 13)
    for part in ("01:00", "120 orders written", "rows/s", "batch time", "lag", "2.0 s", "20"):
        assert part in output.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_picture_is_drawn_whatever_happened(tmp_path: Path, is_empty: bool) -> None:
    seen = Story(("orders", "totals"), 120, STARTED_S) if is_empty else story()
    if not is_empty:
        seen.batches += batches_of([progress(), progress(name="orders", eventTime={})])
    path = tmp_path / "shop.png"
    draw(path, seen, {} if is_empty else {Slot(DAY_START, "books"): Total(1, 2, 300)})
    assert path.read_bytes().startswith(b"\x89PNG")
