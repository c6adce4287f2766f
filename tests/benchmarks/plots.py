"""One chart per workload, as PNG and SVG: bars, or lines where something is varied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.report import number
from tests.benchmarks.results import Key, Results, Summary
from tests.benchmarks.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_OURS = ("log", "append", "upsert", "acker on", "acker off", "verify rows", "batch")
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8d6a9f", "#e08e1b", "#555555")
_OUR_COLOUR, _PEER_COLOUR = _COLOURS[0], "#9aa5b1"


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw what was measured; the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    # The same figures give the same bytes.
    mpl.rcParams["svg.hashsalt"] = "bench"
    from matplotlib import pyplot as plt

    made: list[Path] = []
    for letter, workload in WORKLOADS.items():
        keys = results.keys(letter)
        summaries = [found for key in keys if (found := results.summary(letter, key))]
        if not summaries:
            continue
        height = 4.2 if workload.x else 1.2 + 0.42 * len(summaries)
        figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
        if workload.x:
            _lines(axes, workload, summaries)
        else:
            _bars(axes, workload, summaries)
        axes.set_title(f"({letter}) {workload.title}", loc="left", fontsize=11)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            path = folder / f"{letter}.{kind}"
            figure.savefig(path, dpi=150, metadata=metadata)
            made.append(path)
        plt.close(figure)
    return made


def _bars(axes: Axes, workload: Workload, summaries: Sequence[Summary]) -> None:
    """The medians, the shortest on top; whiskers from the least to the most."""
    ordered = sorted(summaries, key=lambda summary: summary.median, reverse=True)
    names = [str(summary.key) for summary in ordered]
    medians = [summary.median for summary in ordered]
    colours = [_OUR_COLOUR if name in _OURS else _PEER_COLOUR for name in names]
    bars = axes.barh(names, medians, color=colours, height=0.62, xerr=_whiskers(ordered), capsize=3)
    ends = [summary.most for summary in ordered]
    for bar, value, end in zip(bars, medians, ends, strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        axes.annotate(
            number(value),
            (end, middle),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.margins(x=0.1)
    axes.set_xlabel(f"{workload.unit}; median, and least to most; blue: this project")


def _lines(axes: Axes, workload: Workload, summaries: Sequence[Summary]) -> None:
    """A line per contender over what is varied; bars from the least to the most."""
    series: dict[str, list[Summary]] = {}
    for summary in summaries:
        series.setdefault(summary.key.contender, []).append(summary)
    for (name, points), colour in zip(series.items(), _COLOURS * len(series), strict=False):
        points = sorted(points, key=lambda point: _x(point.key))
        axes.errorbar(
            [_x(point.key) for point in points],
            [point.median for point in points],
            yerr=_whiskers(points),
            label=name,
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
        )
    for axis in workload.log_axes:
        getattr(axes, f"set_{axis}scale")("log")
    if not workload.log_axes:
        axes.set_xticks(sorted({_x(summary.key) for summary in summaries}))
    if "y" not in workload.log_axes:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25, which="major")
    axes.set_xlabel(workload.x)
    axes.set_ylabel(workload.unit)
    axes.legend(frameon=False, fontsize=9)


def _whiskers(summaries: Sequence[Summary]) -> Any:
    return [
        [summary.median - summary.least for summary in summaries],
        [summary.most - summary.median for summary in summaries],
    ]


def _x(key: Key) -> int:
    return 0 if key.x is None else key.x
