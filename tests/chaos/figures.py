"""Figures of a run: a pure function of its history. What is wrong with it is the checker's."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.history import Event

__all__ = ["figures"]


def figures(history: Iterable[Event]) -> dict[str, Any]:
    """What a report says beside violations; see the keys.

    Times are seconds. A takeover is counted from the moment at which the leader was killed, stopped
    or cut off, whatever else was going on meanwhile.
    """
    by_kind: dict[str, list[Event]] = {}
    for event in history:
        by_kind.setdefault(event["kind"], []).append(event)
    run = by_kind["run"][0]
    faults = by_kind.get("fault", [])
    drivers = by_kind.get("driver", [])
    versions = by_kind.get("version", [])
    return {
        "seed": run["seed"],
        "store": run.get("store", "local"),
        "cluster": run.get("cluster", "shared"),
        "command": run["command"],
        "machine": run["machine"],
        "began": run["at"],
        "seconds": round(by_kind["end"][-1]["at"] - run["at"]) if "end" in by_kind else None,
        "tables": run["tables"],
        "session_secs": run["session_secs"],
        "faults": dict(sorted(Counter(fault["fault"] for fault in faults).items())),
        "not_available": {event["fault"]: event["why"] for event in by_kind.get("missing", [])},
        "how": _how(faults),
        "store_requests": sum(fault.get("met", 0) for fault in faults),
        "records": _records(by_kind.get("input", [])),
        "transactions": len(_committed_at(versions, run["tables"])),
        "versions": len(versions),
        "replayed_publications": _replayed(versions),
        "replays": _replays(drivers),
        "quarantined": sum(len(event["quarantined"]) for event in by_kind.get("zookeeper", [])),
        "lives": sum(event["what"] == "start" for event in drivers),
        "leaders": sum(event["what"] == "leading" for event in drivers),
        "ended_by_themselves": _ended(drivers, faults),
        "reads": len(by_kind.get("read", [])),
        "unavailable": _unavailable(versions, run["tables"], faults),
        "takeover_to_leadership": _takeovers(drivers, faults, "leading"),
        "takeover_to_commit": _takeovers(drivers, faults, "commit"),
    }


def _how(faults: Sequence[Event]) -> dict[str, dict[str, int]]:
    """Of the faults that come in several ways: how often each."""
    found: dict[str, Counter[str]] = {}
    for fault in faults:
        if "how" in fault:
            where = f": {fault['point']}" if "point" in fault else ""
            found.setdefault(fault["fault"], Counter())[fault["how"] + where] += 1
    return {kind: dict(sorted(ways.items())) for kind, ways in sorted(found.items())}


def _records(inputs: Sequence[Event]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for event in inputs:
        found[event["stream"]] += event["count"]
    return dict(found)


def _committed_at(versions: Sequence[Event], tables: Mapping[str, Any]) -> dict[int, float]:
    """Txid -> when the last table got it for the first time."""
    first: dict[tuple[str, int], float] = {}
    for event in versions:
        if event["publication"] is not None:
            for member in event["publication"]["members"]:
                first.setdefault((event["table"], member["txid"]), event["at"])
    found: dict[int, float] = {}
    for (_, txid), at in first.items():
        found[txid] = max(at, found.get(txid, 0.0))
    return found


def _replayed(versions: Sequence[Event]) -> int:
    """Publications that a table got of a txid that it had had before."""
    seen: set[tuple[str, int]] = set()
    count = 0
    for event in versions:
        if event["publication"] is not None:
            txids = {(event["table"], m["txid"]) for m in event["publication"]["members"]}
            count += bool(txids & seen)
            seen |= txids
    return count


def _replays(drivers: Sequence[Event]) -> int:
    """Attempts that failed and were replayed within a life, as far as the lives have told."""
    by_life: dict[int, int] = {}
    for event in drivers:
        if event["what"] == "replays":
            by_life[event["life"]] = event["count"]
    return sum(by_life.values())


def _ended(drivers: Sequence[Event], faults: Sequence[Event]) -> dict[str, int]:
    """Error -> drivers that stopped with it although nobody killed them."""
    killed = {fault["life"] for fault in faults if fault["fault"] == "driver_kill"}
    ends = [e for e in drivers if e["what"] == "end" and e["life"] not in killed and e["error"]]
    return dict(sorted(Counter(event["error"] for event in ends).items()))


def _unavailable(
    versions: Sequence[Event], tables: Mapping[str, Any], faults: Sequence[Event]
) -> dict[str, Any]:
    """The longest time without a new txid, and which faults fell into it."""
    times = sorted(_committed_at(versions, tables).values())
    gaps = [(after - before, before, after) for before, after in pairwise(times)]
    if not gaps:
        return {"longest": None, "p50": None, "faults": {}}
    longest, start, end = max(gaps)
    during = [f["fault"] for f in faults if f["at"] < end and f["until"] > start - 1]
    return {
        "longest": round(longest, 1),
        "p50": round(statistics.median(gap for gap, _, _ in gaps), 2),
        "faults": dict(sorted(Counter(during).items())),
    }


def _takeovers(drivers: Sequence[Event], faults: Sequence[Event], what: str) -> dict[str, Any]:
    """Seconds from the end of each leader to what its successor did first."""
    done = sorted((e["at"], e["life"]) for e in drivers if e["what"] == what)
    lost = sorted((f["at"], f["life"]) for f in faults if f.get("led"))
    times = []
    for n, (at, life) in enumerate(lost):
        until = lost[n + 1][0] if n + 1 < len(lost) else float("inf")
        after = next((t for t, by in done if t > at and by > life), None)
        if after is not None and after <= until:
            times.append(after - at)
    if not times:
        return {"count": 0, "p50": None, "p95": None, "max": None}
    times.sort()
    return {
        "count": len(times),
        "p50": round(statistics.median(times), 1),
        "p95": round(times[min(len(times) - 1, int(0.95 * len(times)))], 1),
        "max": round(times[-1], 1),
    }
