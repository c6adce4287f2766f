"""What a notebook shows of a run."""

from __future__ import annotations

import pytest

from txn.notebook.live import Moment, Rates, page


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    """The first look has the rates since the beginning; a burst long ago does not count."""
    rates = Rates()
    assert rates.add(2.0, 4, 100) == (2.0, 50.0)
    assert rates.add(6.0, 60, 120) == (10.0, 20.0)
    assert rates.add(12.0, 60, 120) == pytest.approx((5.6, 2.0))
    assert rates.add(23.0, 60, 230) == pytest.approx((0.0, 10.0))


def test_names_and_errors_are_text_and_no_markup() -> None:
    """Streams, tables and errors come from strangers."""
    evil = "<script>alert(1)</script>"
    made = page(
        Moment(
            topology="orders",
            state="running",
            committed_txid=7,
            txids=7,
            records=None,
            rows=3,
            seconds=1.0,
            edges=[("orders", evil), (evil, "warehouse/totals")],
            in_flight=[(f"{txid}:0", evil, 0.5) for txid in range(8, 28)],
            lags={"orders": "12,000 records"},
            failure=evil,
        ),
        Rates(),
    )
    assert "<script>" not in made
    for told in ("orders, lag 12,000 records", "unknown", "19:0", "and 8 more", "Last failure"):
        assert told in made
    assert "20:0" not in made
