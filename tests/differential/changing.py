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

__all__ = ["HALF_PUBLISHED", "NAMES_A_SETTING", "fill_beside", "wrong_marks"]

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
    tables, copied = (
        [str(folder / change.table) for change in life.changes if change.args.get("how") == how]
        for how in ("beside", "copied")
    )
    name = f"d{program.seed}"
    if not [*tables, *copied] or not nodes.open(name).peek().committed.txid:
        return
    status = nodes.status(name)
    fill(
        build(program, name, folder).definition,
        session,
        nodes.open(name),
        [*tables, *copied],
        copied=copied,
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
        path = folder / step.id
        if not (path / "_delta_log").exists():
            continue
        properties = DeltaTable(path).metadata().configuration
        since = json.loads(properties.get("txn.since") or "{}")
        found = {mark["txid"] for mark in _marks(path)} | {txid - 1 for txid in since.values()}
        if not found <= allowed:
            return f"{step.id} changed at {sorted(found)} and should have at {sorted(allowed)}"
    return None


def _marks(path: Path) -> Iterator[dict[str, Any]]:
    for log in sorted((path / "_delta_log").glob("[0-9]*.json")):
        for line in log.read_text().splitlines():
            said = json.loads(line).get("commitInfo", {}).get("txn_change")
            if said:
                mark: dict[str, Any] = json.loads(said) if isinstance(said, str) else said
                yield mark
