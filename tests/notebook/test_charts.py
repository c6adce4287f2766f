"""Charts of txids."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from txn.notebook.charts import LagPoint, TxidFacts, draw

BEGAN = 1_770_000_000.0


def facts(count: int, amount: int | None = 1_000) -> list[TxidFacts]:
    seconds = {"started": 0.01, "staged": 0.2, "turn": 0.05, "published": 0.04, "committed": 0.0}
    return [
        TxidFacts(txid, BEGAN + txid + 0.3, seconds, amount, quarantined=txid == 2)
        for txid in range(1, count + 1)
    ]


def test_a_figure_has_throughput_latency_lag_and_a_timeline() -> None:
    """Rates add up to what was read, bars to how long a txid took, on one scale of seconds."""
    lags = [LagPoint(BEGAN + at, "s", 100 - at, "records") for at in range(8)]
    figure = draw("orders", facts(8), "records", lags, [(3, BEGAN + 3.1, "ValueError: no")])
    throughput, latency, lag, timeline = figure.axes
    (stairs,) = [patch for patch in throughput.patches if hasattr(patch, "get_data")]
    values, edges, _ = stairs.get_data()
    read = sum(v * (b - a) for v, a, b in zip(values, edges, edges[1:], strict=False))
    assert read == pytest.approx(8_000)
    tops = {round(bar.get_y() + bar.get_height(), 6) for bar in latency.patches}
    assert max(tops) == pytest.approx(300)
    assert [line.get_label() for line in lag.lines] == ["lag of s"]
    cross = timeline.collections[-1].get_offsets()[0]
    assert (round(float(cross[0]), 2), float(cross[1])) == (2.1, 3.0)
    assert timeline.get_xlim()[1] < 10
    names = [text.get_text() for text in latency.get_legend().get_texts()]
    assert {"process", "wait for its turn", "quarantined", "failed"} <= set(names)


def test_an_attempt_that_failed_before_all_that_is_shown_has_its_cross() -> None:
    """The first txid's earlier attempts ended before its last one began, with which its bar begins;
    those of txids that are not shown have none.
    """
    failed = [(1, BEGAN - 30.0, "no"), (1, BEGAN + 1.2, "no"), (9, BEGAN, "no")]
    timeline = draw("orders", facts(4), "records", (), failed).axes[-1]
    crosses = [tuple(map(float, each)) for each in timeline.collections[-1].get_offsets()]
    assert crosses == [(0.0, 1.0), (pytest.approx(31.2), 1.0)]
    assert timeline.get_xlim()[0] == 0


@pytest.mark.parametrize("count", [0, 1, 2, 1_000])
def test_any_number_of_txids_is_drawn(count: int) -> None:
    """None, one, or more than there are bars; without a warning of matplotlib's."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw("<orders> $x$", facts(count, None if count == 2 else 5), "records")
        made = figure._repr_png_()  # type: ignore[attr-defined]
    assert made.startswith(b"\x89PNG")
    assert all(len(axes.patches) < 1_300 for axes in figure.axes)


@pytest.mark.parametrize("back", [100.0, 5.0])
def test_a_clock_that_was_set_back_is_drawn(back: float) -> None:
    """Each txid counts after the one before it, in bars of the time that has passed."""
    txids = [replace(each, ended=each.ended - back * (each.txid > 8)) for each in facts(12)]
    (stairs,) = [p for p in draw("t", txids, "records").axes[0].patches if hasattr(p, "get_data")]
    values, edges, _ = stairs.get_data()
    amounts = [v * (b - a) for v, a, b in zip(values, edges, edges[1:], strict=False)]
    assert amounts == pytest.approx([4_000, 3_000, 5_000])
    assert edges[-1] == pytest.approx(10.3, abs=0.01)
