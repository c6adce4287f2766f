"""The Python code on pages, as modules for a type checker."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from tests.release.distribution import ROOT

PRELUDE = """
from collections.abc import Callable
from pathlib import Path
import txn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F, functions as sf
from committers.aggregates import Aggregate, Avg, Count, Fold, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.feeder import FeederSpout
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from spouts.rate import RateSpout
from spouts.reader import ReaderSpout
from txn import Topology
from txn.engine.reporting.report import RunReport
from txn.topology import Stream, TxnState

spark: SparkSession
topology: Topology
report: RunReport
flights: Stream
records: Stream
sales: Stream
views: Stream
words: Stream
connection: dict[str, str]
HERE: Path
COLUMNS: str
totals: TxnState
Range: Callable[[str], Aggregate]
Spread: Callable[[str], Aggregate]
bucket_moves: Callable[[DataFrame], DataFrame]
"""
"""What a reader of any page has: imports, a session, a topology, its streams."""
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
_LEFT_OUT = re.compile(r"\(([^()\n]+), \.\.\.\)")


def modules() -> Iterator[tuple[str, str]]:
    """(name, text) of a module for each page that has Python code: a function for each block.

    A block that names its file is run by another test, and one that begins with a space is a part
    of a class: they are left out. Where a block leaves arguments out ("..."), it gets those of a
    file spout.
    """
    for page in sorted((ROOT / "docs").glob("*.md")):
        blocks = [b for b in _BLOCK.findall(page.read_text("utf-8")) if not b.startswith(" ")]
        functions = [
            f"def block_{number}() -> None:\n{textwrap.indent(completed(block), '    ')}"
            for number, block in enumerate(blocks)
        ]
        if functions:
            yield f"page_{page.stem.replace('-', '_')}", "\n".join([PRELUDE, *functions])


def completed(block: str) -> str:
    return _LEFT_OUT.sub(r'(\1, format="csv", schema="id int")', block)
