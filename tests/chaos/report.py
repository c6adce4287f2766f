"""The report of a run: Markdown, and JSON with the same figures. Written by the program only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from tests import pasting
from tests.chaos.checker import RULES, Violation
from tests.chaos.plan import CLUSTER_FAULTS, FAULTS, STORE_FAULTS, THIRDS, faults_of

__all__ = ["MARKS", "as_json", "markdown", "pasted", "summary"]

MARKS = {
    "local": (
        "<!-- run: begin (written by `make chaos ARGS='... --report docs/reliability.md'`) -->",
        "<!-- run: end -->",
    ),
    "s3": (
        "<!-- run on S3: begin (written by `make chaos ARGS='--store s3 ...' with --report`) -->",
        "<!-- run on S3: end -->",
    ),
    "isolated": (
        "<!-- isolated run: begin (written by `make chaos ARGS='--cluster isolated ...'`) -->",
        "<!-- isolated run: end -->",
    ),
}
"""Store, or kind of cluster -> between what its report stands in a document."""

ZOOKEEPER = ("zookeeper_kill", "zookeeper_stop", "zookeeper_majority")
LINKS = ("link_delay", "link_cut", "session_expiry")
WORDS = {
    "driver_kill": "driver, SIGKILL",
    "zombie": "driver stopped or cut off past its session, succeeded, then resumed",
    "executor_kill": "executor, SIGKILL",
    "worker_kill": "worker with its executors, SIGKILL",
    "zookeeper_kill": "one ZooKeeper server, SIGKILL",
    "zookeeper_stop": "one ZooKeeper server, SIGSTOP",
    "zookeeper_majority": "two or three of the three ZooKeeper servers, SIGKILL or SIGSTOP",
    "link_delay": "the driver's link to ZooKeeper, slow",
    "link_cut": "the driver's link to ZooKeeper, cut or silent",
    "session_expiry": "the driver's ZooKeeper session, ended by another client",
    "broker_kill": "Kafka's broker, SIGKILL",
    "disk_full": "the disk of the tables, full",
    "store_errors": "the store answers with 503 or 500, or cuts connections, for some seconds",
    "store_lost": "the store does what it was asked, and the answer is lost",
    "store_late": "commits are said to have failed, and reach the store later",
    "store_slow": "the store is slow, so that requests overtake each other",
    "store_lists": "listings lag: without new objects, or as they were before",
    "store_kill": "the store's server, SIGKILL",
    "worker_pause": "worker with its executors, SIGSTOP for up to 30 s",
    "worker_decommission": "worker decommissioned, then gone",
    "worker_add": "one more worker, for up to 30 s",
    "worker_cut_driver": "worker cut off from the driver and the master, for up to 30 s",
    "worker_cut_store": "worker cut off from the store, for up to 30 s",
}


def as_json(figures: Mapping[str, Any], violations: Sequence[Violation]) -> str:
    """Everything, for a program."""
    whole = {**figures, "violations": [asdict(violation) for violation in violations]}
    return json.dumps(whole, indent=1) + "\n"


def summary(figures: Mapping[str, Any], violations: Sequence[Violation]) -> str:
    """One line."""
    faults = sum(figures["faults"].values())
    wrong = f"{len(violations)} VIOLATIONS" if violations else "0 violations"
    return (
        f"seed {figures['seed']}: {faults} faults, {sum(figures['records'].values()):,} records, "
        f"{figures['transactions']:,} transactions, {wrong}"
    )


def markdown(figures: Mapping[str, Any], violations: Sequence[Violation]) -> str:
    """The report."""
    parts = [
        *_about(figures),
        "",
        *_verdict(violations),
        "",
        *_faults(figures),
        "",
        *_work(figures),
        "",
        *_times(figures),
    ]
    return "\n".join(parts) + "\n"


def pasted(document: str, content: str, where: str = "local") -> str:
    """As `tests.pasting.pasted`, between the marks of this report."""
    return pasting.pasted(document, content, *MARKS[where])


def _about(figures: Mapping[str, Any]) -> Iterable[str]:
    machine = figures["machine"]
    began = datetime.fromtimestamp(figures["began"], timezone.utc)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    yield f"    {figures['command']}"
    yield ""
    yield f"Begun {began:%Y-%m-%d %H:%M} UTC; {_minutes(figures['seconds'])} from the first process"
    yield f"to the last check; seed {figures['seed']}."
    yield f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB;"
    yield f"{machine['system']}; Python {machine['python']}, Java {machine['java']}, {packages};"
    yield f"commit {machine['commit']}."


def _minutes(seconds: float | None) -> str:
    return "unfinished" if seconds is None else f"{seconds / 60:.1f} minutes"


def _verdict(violations: Sequence[Violation]) -> Iterable[str]:
    yield "### Violations"
    yield ""
    rows = []
    for rule, meaning in RULES.items():
        count = sum(violation.count for violation in violations if violation.rule == rule)
        rows.append((meaning, f"**{count}**" if count else "0"))
    yield from _table(("looked for", "found"), rows)
    if violations:
        yield ""
        yield from (f"- {v.rule}, {v.where}: {v.what}" for v in violations[:100])


def _faults(figures: Mapping[str, Any]) -> Iterable[str]:
    faults = figures["faults"]
    yield "### Faults"
    yield ""
    rows = []
    there = faults_of(figures["store"], THIRDS, figures["cluster"])
    kinds = [*there, *figures["not_available"]]
    for kind in dict.fromkeys(kinds):
        why = figures["not_available"].get(kind)
        count = f"not available: {why}" if why else f"{faults.get(kind, 0):,}"
        rows.append((WORDS[kind], count))
    sums = {
        "executors and workers": ("executor_kill", "worker_kill", *CLUSTER_FAULTS),
        "ZooKeeper servers": ZOOKEEPER,
        "links and sessions": LINKS,
        **({"the store": tuple(STORE_FAULTS)} if figures["store"] != "local" else {}),
        "all": FAULTS,
    }
    for words, some in sums.items():
        total = sum(faults.get(kind, 0) for kind in some)
        rows.append((f"*{words}, together*", f"*{total:,}*"))
    yield from _table(("fault", "times"), rows)
    kills = figures["how"].get("driver_kill", {})
    at = {how.partition(": ")[2]: n for how, n in kills.items() if how.startswith("point")}
    yield ""
    yield f"Drivers were killed {kills.get('start', 0)} times while they started, "
    yield f"{kills.get('time', 0)} times at a random moment of their run, "
    yield f"{sum(at.values())} times at a named point of a batch's or a table's life "
    yield f"({', '.join(f'{point} {n}' for point, n in at.items()) or 'none'}), "
    other = sum(kills.values()) - kills.get("start", 0) - kills.get("time", 0) - sum(at.values())
    yield f"and {other} times because other faults kept them from committing."
    ways = figures["how"].get("zombie", {})
    yield f"Zombies: {', '.join(f'{n} by {how}' for how, n in ways.items()) or 'none'}."
    if figures["store"] != "local":
        yield f"{figures['store_requests']:,} requests to the store met one of its faults."


def _work(figures: Mapping[str, Any]) -> Iterable[str]:
    records = figures["records"]
    yield "### Work"
    yield ""
    ended = ", ".join(f"{error} {n}" for error, n in figures["ended_by_themselves"].items())
    by_stream = ", ".join(f"{name} {n:,}" for name, n in records.items())
    yield from _table(
        ("", ""),
        [
            ("records", f"{sum(records.values()):,} ({by_stream})"),
            ("transactions", f"{figures['transactions']:,}"),
            (
                "table versions checked",
                f"{figures['versions']:,} of {len(figures['tables'])} tables",
            ),
            ("reads of the concurrent reader, each checked", f"{figures['reads']:,}"),
            (
                "drivers started; of these became leader",
                f"{figures['lives']}; {figures['leaders']}",
            ),
            ("attempts replayed within a life", f"{figures['replays']:,}"),
            (
                "publications that replaced or repeated an unfinished one",
                f"{figures['replayed_publications']:,}",
            ),
            ("txids quarantined", f"{figures['quarantined']}"),
            ("drivers that ended by themselves, by error", ended or "none"),
        ],
    )


def _times(figures: Mapping[str, Any]) -> Iterable[str]:
    yield "### Times"
    yield ""
    gap = figures["unavailable"]
    during = ", ".join(f"{kind} {n}" for kind, n in gap["faults"].items())
    rows = [
        (
            "without a new txid, the longest time",
            f"{gap['longest']} s, during: {during or 'no fault'}",
        ),
        ("between two txids, p50", f"{gap['p50']} s"),
    ]
    for key, words in (
        ("takeover_to_leadership", "from a leader's end to its successor's leadership"),
        ("takeover_to_commit", "from a leader's end to its successor's first COMMITTED"),
    ):
        times = figures[key]
        rows.append(
            (
                f"{words} ({times['count']} times)",
                f"p50 {times['p50']} s, p95 {times['p95']} s, max {times['max']} s",
            )
        )
    yield from _table(("", ""), rows)
    yield ""
    yield f"ZooKeeper's session timeout was {figures['session_secs']:g} s. The times include the"
    yield "start of Python, a JVM, Spark and its executors, and whatever faults came meanwhile."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
