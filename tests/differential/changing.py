"""What a run does with a program that has changed, and what the tables' logs say of the change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from tests.differential.build import build
from tests.differential.changes import OF_TABLES, held
from tests.differential.declaration import Life, Program
from txn.engine.filling import fill
from txn.testing.progress import MemoryNodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HALF_PUBLISHED", "NAMES_A_SETTING", "fill_beside", "left_alone", "wrong_marks"]

HALF_PUBLISHED = re.compile(
    r"Run the former program until that txid is committed \(--until (\d+)\)"
)
"""A refusal: some tables hold a txid that others lack, and the former program has to finish it."""

NAMES_A_SETTING = re.compile("|".join(OF_TABLES))
"""A refusal with a way out."""


def fill_beside(
    program: Program, life: Life, session: SparkSession, folder: Path, nodes: MemoryNodes
) -> None:
    """Fill new tables, and next generations of others, before the run, as `txn backfill` does."""
    name = f"d{program.seed}"
    for how in ("beside", "copied"):
        changes = [change for change in life.changes if change.args.get("how") == how]
        tables = [str(folder / change.table) for change in changes]
        if not tables or not nodes.open(name).peek().committed.txid:
            continue
        status = nodes.status(name)
        fill(
            build(program, name, folder).definition,
            session,
            nodes.open(name),
            tables,
            copied=tables if how == "copied" else (),
            epoch=status.epoch,
            life=status.incarnation,
            stragglers=[],
        )


def wrong_marks(program: Program, boundaries: Sequence[int], folder: Path) -> str | None:
    """What the tables' logs say that is wrong: a change at another txid than the life's first."""
    for step in held(program).tables:
        allowed = {
            boundary
            for boundary, life in zip(boundaries, program.lives, strict=True)
            if any(change.table == step.id for change in life.changes)
        }
        if any(
            c.op == "refill" and c.table == step.id for one in program.lives for c in one.changes
        ):
            allowed.add(0)  # no batch had needed the table yet: it got its history then
        path = folder / step.id
        if not (path / "_delta_log").exists():
            continue
        properties = DeltaTable(path).metadata().configuration
        since = json.loads(properties.get("txn.since") or "{}")
        found = {mark["txid"] for mark in _marks(path)} | {txid - 1 for txid in since.values()}
        if not found <= allowed:
            return f"{step.id} changed at {sorted(found)} and should have at {sorted(allowed)}"
    return None


def left_alone(program: Program, boundaries: Sequence[int], folder: Path) -> set[str]:
    """The tables that need not be as the last program has them.

    One was dropped while it held a txid that a crash had left in it alone. Another one waits with a
    change for the columns of its stream, and no batch has come since.
    """
    unknown = {source.name for source in program.sources if not source.known}
    found = set()
    for boundary, life in zip(boundaries, program.lives, strict=True):
        for change in life.changes:
            path = folder / change.table
            if change.op == "drop_table" and (path / "_delta_log").exists():
                found |= {change.table} if max(_txids(path), default=0) > boundary else set()
            if boundary == program.txids and change.op.endswith("_column") and unknown:
                found.add(change.table)
    return found


def _txids(path: Path) -> Iterator[int]:
    for said in _told(path, "txn"):
        if "last_txid" in said:
            yield said["last_txid"]


def _marks(path: Path) -> Iterator[dict[str, Any]]:
    return _told(path, "txn_change")


def _told(path: Path, key: str) -> Iterator[dict[str, Any]]:
    for log in sorted((path / "_delta_log").glob("[0-9]*.json")):
        for line in log.read_text().splitlines():
            said = json.loads(line).get("commitInfo", {}).get(key)
            if said:
                yield json.loads(said) if isinstance(said, str) else said
