"""What a notebook shows of a run."""

from __future__ import annotations

from txn.notebook.live import Moment, Rates, page


def moment(seconds: float, txids: int, records: int | None, rows: int = 0) -> Moment:
    return Moment("orders", "running", txids, txids, records, rows, seconds)


def test_rates_are_those_of_the_last_seconds() -> None:
    """The first moment has the rates since the beginning; later ones those of ten seconds."""
    rates = Rates()
    assert rates.of(moment(2.0, 4, 100)) == (2.0, 50.0, 0.0)
    assert rates.of(moment(6.0, 8, 500)) == (1.0, 100.0, 0.0)
    rates.of(moment(14.0, 8, 500))
    assert rates.of(moment(20.0, 14, None))[1] is None


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
