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
"""A mark of a txid's times -> the phase that ends there, and its colour."""
_LONGEST = 40
"""Txids of the timeline."""
_TITLE = 105
_BARS = 120
"""Most bars of the other charts: of more txids, several share one."""


@dataclass(frozen=True)
class TxidFacts:
    """One committed txid, as a chart shows it."""

    txid: int
    ended: float
    """When it was committed, seconds since the epoch."""
    seconds: Mapping[str, float]
    """Mark (see `PHASES`) -> seconds since the mark before it, in order."""
    amount: int | None
    """Records that it read, or rows that it staged; None: not known."""
    quarantined: bool = False


@dataclass(frozen=True)
class LagPoint:
    """What a stream lagged by, at one time."""

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
    """One figure with all charts for which there is something to show.

    Args:
        txids: in order.
        unit: of their amounts: "records" or "rows".
        failed: (txid, when, error) of attempts that failed.

    Raises:
        SetupError: matplotlib is not installed.
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
        for each in axes:
            each.set_axis_off()
        axes[0].text(0, 0.5, "Nothing was committed.")
        return figure
    txids = _in_order(txids)
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


def _in_order(txids: Sequence[TxidFacts]) -> list[TxidFacts]:
    """The same where time never goes back: a clock may have been set between two of them."""
    found, back = [txids[0]], 0.0
    for before, each in pairwise(txids):
        back += max(0.0, before.ended - each.ended)
        found.append(replace(each, ended=each.ended + back))
    return found


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
        """A figure that a notebook shows, also where pyplot was not imported."""

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
    """Amount per second, over the time in which each interval's txids were committed."""
    _style(axis, "Throughput", f"{unit} / s")
    began = txids[0].ended - sum(txids[0].seconds.values())
    # Wide enough that a few txids are committed in each.
    bars = max(1, min(60, len(txids) // 4))
    width = max((txids[-1].ended - began) / bars, 1e-3)
    amounts = [0.0] * bars
    for each in txids:
        amounts[min(bars - 1, int((each.ended - began) / width))] += each.amount or 0
    known = any(each.amount is not None for each in txids)
    if not known:
        axis.text(0.01, 0.5, f"The spouts do not know their {unit}.", transform=axis.transAxes)
    edges = [width * at for at in range(bars + 1)]
    axis.stairs([each / width for each in amounts], edges, fill=True, color="#2f6fb0", alpha=0.85)
    axis.set_xlim(0, edges[-1])
    axis.set_ylim(bottom=0)
    _thousands(axis.yaxis)
    told = datetime.fromtimestamp(began, timezone.utc)
    axis.set_xlabel(f"seconds since {told:%Y-%m-%d %H:%M:%S} UTC", fontsize=8)


def _latency(axis: Axes, txids: Sequence[TxidFacts]) -> None:
    """From plan to commit, by phase, of the attempt that was committed.

    Of many txids, the mean of each share.
    """
    step = -(-len(txids) // _BARS)
    shares = [txids[at : at + step] for at in range(0, len(txids), step)]
    each = f", mean of {step} txids each" if step > 1 else ""
    _style(axis, f"Latency by station, of the attempt that was committed{each}", "ms")
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
    _thousands(axis.yaxis)
    _whole(axis.xaxis)


def _lag(axis: Axes, lags: Sequence[LagPoint], began: float) -> None:
    units = sorted({each.unit for each in lags})
    _style(axis, "Lag: what of a source is not committed", ", ".join(units))
    for stream in sorted({each.stream for each in lags}):
        of_stream = [each for each in lags if each.stream == stream]
        axis.step(
            [max(0.0, each.at - began) for each in of_stream],
            [each.amount for each in of_stream],
            where="post",
            label=f"lag of {stream}",
            linewidth=1.4,
        )
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    _thousands(axis.yaxis)
    axis.set_xlabel("seconds", fontsize=8)
    axis.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False)


def _timeline(
    axis: Axes, txids: Sequence[TxidFacts], failed: Sequence[tuple[int, float, str]]
) -> None:
    """The newest txids as bars by phase, from plan to commit; attempts that failed as crosses."""
    _style(axis, "Timeline of the newest txids", "txid")
    known = {each.txid for each in txids}
    crosses = [(txid, at) for txid, at, _ in failed if txid in known]
    # An attempt that failed began before the one whose times are known.
    starts = [each.ended - sum(each.seconds.values()) for each in txids]
    began = min([*starts, *(at for _, at in crosses)])
    for mark, (_, colour) in PHASES.items():
        found = [each for each in txids if each.seconds.get(mark)]
        axis.barh(
            [each.txid for each in found],
            [each.seconds[mark] for each in found],
            left=[_start(each, mark) - began for each in found],
            height=0.8,
            color=colour,
        )
    emptied = [each for each in txids if each.quarantined]
    if emptied:
        axis.scatter(
            [each.ended - began for each in emptied],
            [each.txid for each in emptied],
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
    _whole(axis.yaxis)


def _start(facts: TxidFacts, mark: str) -> float:
    """When the phase that ends at `mark` began."""
    marks = list(facts.seconds)
    after = sum(facts.seconds[each] for each in marks[marks.index(mark) :])
    return facts.ended - after


def _whole(axis: Axis) -> None:
    """Txids are whole numbers, also where only one is shown."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def _thousands(axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter

    def told(value: float, _: float) -> str:
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"

    axis.set_major_formatter(FuncFormatter(told))
