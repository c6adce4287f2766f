"""Charts of txids with matplotlib (extra `plot`): throughput, latency, lag, and a timeline."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING

from txn.errors import SetupError
from txn.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["LagPoint", "TxidFacts", "draw"]

PHASES = {
    "started": ("start", "#9aa5b1"),
    "processing": ("wait for Spark", "#dfe4ea"),
    "staged": ("process", "#2f6fb0"),
    "processed": ("acknowledge", "#7fb2e5"),
    "turn": ("wait for its turn", "#f3d9a4"),
    "prepared": ("prepare", "#e08e2b"),
    "published": ("publish", "#b5541c"),
    "committed": ("commit", "#3d8b57"),
}
"""A mark in a txid's times -> the phase that ends there, and its colour."""
_LONGEST = 40
"""Most txids in the timeline."""
_TITLE = 105
_BARS = 120
"""Most bars of the other charts: with more txids, several share a bar."""


@dataclass(frozen=True)
class TxidFacts:
    """One committed txid, as a chart shows it."""

    txid: int
    ended: float
    """The time of its commit, seconds since the epoch."""
    seconds: Mapping[str, float]
    """Mark (see `PHASES`) -> seconds since the mark before it, in order."""
    amount: int | None
    """Records that it read, or rows that it staged; None: unknown."""
    quarantined: bool = False


@dataclass(frozen=True)
class LagPoint:
    """The lag of a stream at one time."""

    at: float
    stream: str
    amount: float
    unit: str


def draw(
    title: str,
    txids: Sequence[TxidFacts],
    unit: str,
    lags: Sequence[LagPoint] = (),
    failed: Sequence[tuple[int, float, str]] = (),
) -> Figure:
    """Draw one figure with every chart that has data.

    Args:
        txids: in order.
        unit: of their amounts: "records" or "rows".
        failed: (txid, time, error) of failed attempts.
    """
    figure_type = _figure_type()
    has_lag = bool(lags)
    listed = min(_LONGEST, len(txids))
    heights = [2.2, 2.2, *([1.8] if has_lag else []), max(1.6, 0.13 * listed + 0.8)]
    figure = figure_type(figsize=(9.5, sum(heights) + 0.8), layout="constrained", dpi=100)
    short = title if len(title) <= _TITLE else f"{title[:_TITLE]}…"
    figure.suptitle(
        printable(short), x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False
    )
    axes = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
    if not txids:
        for axis in axes:
            axis.set_axis_off()
        axes[0].text(0, 0.5, "Nothing was committed.")
        return figure
    txids = _ordered_by_time(txids)
    shown = txids[-_LONGEST:]
    _throughput(axes[0], txids, unit)
    _latency(axes[1], txids)
    if has_lag:
        _lag(axes[2], lags, txids[0].ended - sum(txids[0].seconds.values()))
    _timeline(axes[-1], shown, failed)
    handles, labels = axes[-1].get_legend_handles_labels()
    more, named = axes[1].get_legend_handles_labels()
    legend = dict(zip([*named, *labels], [*more, *handles], strict=True))
    axes[1].legend(
        legend.values(),
        legend.keys(),
        loc="upper left",
        bbox_to_anchor=(1.005, 1.0),
        fontsize=8,
        frameon=False,
    )
    return figure


def _ordered_by_time(txids: Sequence[TxidFacts]) -> list[TxidFacts]:
    """Shift txids so that time never goes back: the clock may have been set in between."""
    ordered, back = [txids[0]], 0.0
    for before, facts in pairwise(txids):
        back += max(0.0, before.ended - facts.ended)
        ordered.append(replace(facts, ended=facts.ended + back))
    return ordered


def _figure_type() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError(
            f"plot() needs matplotlib, which is missing ({error}). Install it: pip install "
            "'txn-spark[plot]'.",
            number="TXN-211",
        ) from error

    class Chart(Figure):
        """A figure that a notebook shows even if pyplot was not imported."""

        def _repr_png_(self) -> bytes:
            made = io.BytesIO()
            self.savefig(made, format="png")
            return made.getvalue()

    return Chart


def _style(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, loc="left", fontsize=9.5)
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(labelsize=8, length=2)
    axis.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _throughput(axis: Axes, txids: Sequence[TxidFacts], unit: str) -> None:
    """Draw the amount per second, by the time of the commits."""
    _style(axis, "Throughput", f"{unit} / s")
    began = txids[0].ended - sum(txids[0].seconds.values())
    # Wide enough for a few commits in each.
    bars = max(1, min(60, len(txids) // 4))
    width = max((txids[-1].ended - began) / bars, 1e-3)
    amounts = [0.0] * bars
    for facts in txids:
        amounts[min(bars - 1, int((facts.ended - began) / width))] += facts.amount or 0
    is_known = any(facts.amount is not None for facts in txids)
    if not is_known:
        axis.text(0.01, 0.5, f"The spouts do not know their {unit}.", transform=axis.transAxes)
    edges = [width * at for at in range(bars + 1)]
    axis.stairs(
        [amount / width for amount in amounts], edges, fill=True, color="#2f6fb0", alpha=0.85
    )
    axis.set_xlim(0, edges[-1])
    axis.set_ylim(bottom=0)
    _group_thousands(axis.yaxis)
    began_at = datetime.fromtimestamp(began, timezone.utc)
    axis.set_xlabel(f"seconds since {began_at:%Y-%m-%d %H:%M:%S} UTC", fontsize=8)


def _latency(axis: Axes, txids: Sequence[TxidFacts]) -> None:
    """Draw the time from plan to commit of the committed attempts, by phase.

    With many txids, each bar is the mean of several.
    """
    step = -(-len(txids) // _BARS)
    shares = [txids[at : at + step] for at in range(0, len(txids), step)]
    mean = f", mean of {step} txids each" if step > 1 else ""
    _style(axis, f"Latency by station, of the attempt that was committed{mean}", "ms")
    bottom = [0.0] * len(shares)
    at = [share[0].txid + (len(share) - 1) / 2 for share in shares]
    for mark, (name, colour) in PHASES.items():
        heights = [
            sum(one.seconds.get(mark, 0.0) for one in share) / len(share) * 1000 for share in shares
        ]
        if any(heights):
            axis.bar(at, heights, width=step * 0.9, bottom=bottom, color=colour, label=name)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axis.set_xlabel("txid", fontsize=8)
    axis.set_xlim(txids[0].txid - 0.7, txids[-1].txid + 0.7)
    _group_thousands(axis.yaxis)
    _use_whole_numbers(axis.xaxis)


def _lag(axis: Axes, lags: Sequence[LagPoint], began: float) -> None:
    units = sorted({point.unit for point in lags})
    _style(axis, "Lag: what of a source is not committed", ", ".join(units))
    for stream in sorted({point.stream for point in lags}):
        points = [point for point in lags if point.stream == stream]
        axis.step(
            [max(0.0, point.at - began) for point in points],
            [point.amount for point in points],
            where="post",
            label=f"lag of {stream}",
            linewidth=1.4,
        )
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    _group_thousands(axis.yaxis)
    axis.set_xlabel("seconds", fontsize=8)
    axis.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False)


def _timeline(
    axis: Axes, txids: Sequence[TxidFacts], failed: Sequence[tuple[int, float, str]]
) -> None:
    """Draw the newest txids as bars by phase, from plan to commit; failed attempts as crosses."""
    _style(axis, "Timeline of the newest txids", "txid")
    shown_txids = {facts.txid for facts in txids}
    crosses = [(txid, at) for txid, at, _ in failed if txid in shown_txids]
    # A failed attempt began before the committed one, whose times are known.
    starts = [facts.ended - sum(facts.seconds.values()) for facts in txids]
    began = min([*starts, *(at for _, at in crosses)])
    for mark, (_, colour) in PHASES.items():
        with_phase = [facts for facts in txids if facts.seconds.get(mark)]
        axis.barh(
            [facts.txid for facts in with_phase],
            [facts.seconds[mark] for facts in with_phase],
            left=[_phase_start(facts, mark) - began for facts in with_phase],
            height=0.8,
            color=colour,
        )
    emptied = [facts for facts in txids if facts.quarantined]
    if emptied:
        axis.scatter(
            [facts.ended - began for facts in emptied],
            [facts.txid for facts in emptied],
            marker="s",
            s=18,
            color="#7a1fa2",
            label="quarantined",
            zorder=3,
        )
    if crosses:
        seconds = [at - began for _, at in crosses]
        of_txids = [txid for txid, _ in crosses]
        axis.scatter(seconds, of_txids, marker="x", s=28, color="#c62828", label="failed")
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("seconds", fontsize=8)
    axis.grid(axis="x", color="#e6e9ed", linewidth=0.8)
    _use_whole_numbers(axis.yaxis)


def _phase_start(facts: TxidFacts, mark: str) -> float:
    """Return the time when the phase that ends at `mark` began."""
    marks = list(facts.seconds)
    after = sum(facts.seconds[later_mark] for later_mark in marks[marks.index(mark) :])
    return facts.ended - after


def _use_whole_numbers(axis: Axis) -> None:
    """Label an axis with whole numbers, even for a single txid."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def _group_thousands(axis: Axis) -> None:
    def grouped(value: float, _: float) -> str:
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"

    axis.set_major_formatter(grouped)
