"""One deployment changes everything about a shop, while orders come in and a reader looks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tests.faults.support import rows_of
from txn.delta.commits import txid_app

if TYPE_CHECKING:
    from txn.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parent.parent.parent
FIRST = """
from committers.aggregates import Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

topology = Topology("shop")
files = FileSpout("in/*.csv", format="csv", schema="customer string, amount int", files_per_batch=1)
orders = topology.stream("orders", files)
orders.partition_persist(AppendTable("orders", "transactional"))
orders.group_by("customer").persistent_aggregate(
    StateTable("totals", "transactional", buckets=2), spent=Sum("amount")
)
"""
SECOND = (
    FIRST.replace('stream("orders", files)', 'stream("sales", files, was="orders")')
    .replace(
        "orders.partition_persist",
        'orders.transform(lambda df: df.selectExpr("*", "amount * 2 AS tax")).partition_persist',
    )
    .replace("buckets=2", "buckets=4")
    .replace('Sum("amount")', 'Sum("amount"), largest=Max("amount")')
)
CUSTOMERS = ("anna", "bert", "carl")


class Shop:
    """A folder into which orders come as files, and the processes that work there."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder, self._zookeeper = folder, zookeeper
        (folder / "in").mkdir()
        self.files = 0

    def sell(self, files: int = 1) -> None:
        """Put more orders into the folder, each file at once."""
        for _ in range(files):
            self.files += 1
            n = self.files
            lines = "".join(f"{c},{n * 7 % (11 + i)}\n" for i, c in enumerate(CUSTOMERS))
            hidden = self.folder / "in" / f".{n:04}"
            hidden.write_text(lines)
            hidden.rename(self.folder / "in" / f"{n:04}.csv")

    def process(self, output: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in the folder, with its output in a file there."""
        with (self.folder / output).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE if command[0] != "txn" else subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def txn(self, command: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a command over a program."""
        name = f"{'first' if program is FIRST else 'second'}.py"
        (self.folder / name).write_text(program)
        spark = ("--zookeeper", self._zookeeper, "--master", "local[1]")
        return self.process("output", "txn", command, f"{name}:topology", *spark, *options)

    def output(self) -> str:
        """Everything that the commands have printed."""
        return (self.folder / "output").read_text()

    def committed(self) -> int:
        """The newest txid in the totals; 0 before there are any."""
        try:
            table = DeltaTable(str(self.folder / "totals"))
        except Exception:  # noqa: BLE001 - not there yet
            return 0
        return table.transaction_version(txid_app("shop")) or 0

    def wait_for(self, txid: int) -> None:
        """Wait until the totals hold a txid."""
        until = time.monotonic() + 240
        while self.committed() < txid:
            assert time.monotonic() < until, self.output()
            time.sleep(0.05)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Sell all the time."""
        closed = threading.Event()

        def sell() -> None:
            while not closed.wait(2):
                self.sell()

        seller = threading.Thread(target=sell)
        seller.start()
        try:
            yield
        finally:
            closed.set()
            seller.join()


def test_one_deployment_changes_everything_while_a_reader_looks(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Totals gain a value with its history and twice the buckets, a table a column, a stream
    another name; a reader that looks ten times a second sees tables that agree at every txid.
    """
    shop = Shop(tmp_path, f"{zookeeper.hosts}/{tmp_path.name}")
    shop.sell(3)
    with ExitStack() as stack:
        reader = shop.process("looks", "tests.faults.story_reader", "orders", "totals")
        stack.callback(reader.kill)
        former = shop.txn("run", FIRST)
        stack.callback(former.kill)
        shop.wait_for(3)
        with shop.open():
            filling = shop.txn("backfill", SECOND, "--table", "totals")
            assert filling.wait(240) == 0, shop.output()
            before = shop.committed()
            former.kill()  # the deployment waits for nothing
            former.wait()
            present = shop.txn("run", SECOND, "--set", "backfilled_tables=totals")
            stack.callback(present.kill)
            shop.wait_for(before + 3)
        shop.wait_for(shop.files)
        present.terminate()
        assert present.wait(240) == 0, shop.output()
        reader.communicate(b"\n")
    looks = [json.loads(line) for line in (tmp_path / "looks").read_text().splitlines()]
    assert not [look for look in looks if "differs" in look]
    assert {look["buckets"] for look in looks} == {"2", "4"}
    assert len({look["txid"] for look in looks}) > 5
    spent: dict[str, list[int]] = defaultdict(list)
    for file in (tmp_path / "in").glob("*.csv"):
        for line in file.read_text().splitlines():
            customer, amount = line.split(",")
            spent[customer].append(int(amount))
    rows = rows_of(tmp_path / "totals", "customer", "spent", "largest")
    assert rows == sorted((c, sum(v), max(v)) for c, v in spent.items())
