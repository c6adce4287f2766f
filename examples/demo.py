"""The flights topology, killed midway, resumed, and compared with one plain Spark batch.

python -m examples.demo

Exit code 0 only if every table equals the plain batch, row for row, duplicates included.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples import flights
from examples.prepare_flights import prepare_flights
from txn import TxnError
from txn.errors import SetupError
from txn.machine.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE = Path(flights.BASE)
TABLES, ZOOKEEPER = BASE / "tables", BASE / "zookeeper"
BATCHES = 12
KILL_AFTER = 5
# In processes that live for half a minute, Java's optimizing compiler costs more than it saves.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}

say = Console(highlight=False)


def main() -> int:
    """Run the demonstration; return the exit code."""
    try:
        return demonstrate()
    except TxnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130


def demonstrate() -> int:
    """Prepare, run, kill, resume, compare."""
    find_java()
    clean_up()
    say.print(f"[bold]1. Prepare[/]  twelve files, one a month, in {BASE}/flights")
    prepare_flights(BASE / "flights")
    say.print(f"[bold]2. Run[/]      and kill it once {KILL_AFTER} of {BATCHES} are committed")
    run_until(KILL_AFTER)
    say.print(f"[bold]3. Killed[/]   with SIGKILL. {left_behind()}")
    say.print("[bold]4. Resume[/]   in a new process")
    run_until(None)
    say.print("[bold]5. Compare[/]  with one plain Spark batch over the same files")
    equal = compare()
    say.print(farewell() if equal else "[bold red]The tables differ.[/]", soft_wrap=True)
    return 0 if equal else 1


def clean_up() -> None:
    """Remove the results of an earlier demonstration, but keep the prepared files."""
    from txn.embedded import running_server

    if running_server(ZOOKEEPER) is not None:
        raise SetupError(
            f"Another process uses '{BASE}'. Wait for it or stop it, or give this one another "
            "folder: TXN_DEMO_DIR=/some/folder."
        )
    for folder in (TABLES, ZOOKEEPER):
        shutil.rmtree(folder, ignore_errors=True)


# --- running and killing ---------------------------------------------------------------------


def run_until(kill_after: int | None) -> None:
    """Run `txn run` in its own process; SIGKILL it after that many commits (None: never).

    Raises:
        SetupError: it ended differently; with its output.
    """
    command = [sys.executable, "-m", "txn", "run", f"{Path(flights.__file__)}:topology"]
    command += ["--zookeeper", f"embedded:{ZOOKEEPER}", "--until", "caught_up", "--json"]
    command += [part for key, value in QUICK.items() for part in ("--conf", f"{key}={value}")]
    with (
        (BASE / "stderr.txt").open("w+", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as child,
        progress() as show,
    ):
        assert child.stdout is not None
        for event in map(json.loads, child.stdout):
            if event["event"] == "waiting":  # a stage waits for another one: not shown here
                continue
            show(event)
            if kill_after is not None and event.get("txid") == kill_after:
                child.send_signal(signal.SIGKILL)
                break
        code = child.wait()
        if code != (0 if kill_after is None else -signal.SIGKILL):
            stderr.seek(0)
            raise SetupError(f"`txn run` ended with code {code}. Output: {stderr.read().strip()}")


@contextmanager
def progress() -> Iterator[Any]:
    """Yield a function that shows an event of `txn run --json`: as a bar, or as lines in a pipe."""
    if not say.is_terminal:
        yield lambda event: say.print(f"   {line(event)}", soft_wrap=True)
        return
    columns = (
        TextColumn("  "),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=say) as bar:
        task = bar.add_task("starting Spark and ZooKeeper", total=BATCHES)

        def show(event: dict[str, Any]) -> None:
            done = event.get("committed_txid", event.get("txid"))
            bar.update(task, completed=done, description=line(event))

        yield show


def line(event: dict[str, Any]) -> str:
    """An event of `txn run --json` in a few words."""
    if event["event"] == "started":
        return f"epoch {event['epoch']} goes on after txid {event['committed_txid']}"
    if event["event"] == "ended":
        return f"{event['batches_committed']} batches, {event['replays']} replays"
    return f"{event['event']} {event['txid']}:{event['attempt']}"


def left_behind() -> str:
    """The state in ZooKeeper after the kill, in words."""
    from txn.embedded import zookeeper_service
    from txn.zookeeper import read_status

    with zookeeper_service(f"embedded:{ZOOKEEPER}") as hosts:
        progress = read_status(hosts, flights.topology.name, flights.topology.config).progress
    attempts = ", ".join(f"{b.txid}:{b.attempt}" for b in progress.batches) or "nothing"
    return f"ZooKeeper: txid {progress.committed.txid} committed; {attempts} in flight"


# --- comparing -------------------------------------------------------------------------------


def compare() -> bool:
    """Hold each table against a plain batch; print totals and verdicts."""
    from txn.session import delta_session

    spark = delta_session("demo", conf=QUICK)
    try:
        expected = plain_batch(spark)
        actual = published(spark)
        print_totals(actual["delays"])
        verdicts = [verdict(name, actual[name], expected[name]) for name in expected]
    finally:
        spark.stop()
    return all(verdicts)


def plain_batch(spark: SparkSession) -> dict[str, DataFrame]:
    """The rows that the tables must hold, computed by Spark from all files at once."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    rows = spark.read.csv(f"{BASE}/flights/*.csv", schema=flights.SCHEMA, header=True)
    return {
        "delays": rows.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.sum("dep_delay").alias("delay")
        ),
        "routes": rows.groupBy("origin", "dest").agg(F.count("*").alias("flights")),
        # A file a month and a batch a file, in the order of their names: the month is the txid.
        "cancelled": rows.where("dep_time IS NULL").withColumn(
            "txid", F.col("month").cast("bigint")
        ),
    }


def published(spark: SparkSession) -> dict[str, DataFrame]:
    """The rows that the tables hold, read as ordinary readers do."""
    from committers.append_table import AppendTable
    from committers.state_table import StateTable

    return {
        "delays": StateTable(f"{TABLES}/delays").read(spark),
        "routes": StateTable(f"{TABLES}/routes", semantics="transactional").read(spark),
        "cancelled": AppendTable(f"{TABLES}/cancelled").read(spark),
    }


def verdict(name: str, actual: DataFrame, expected: DataFrame) -> bool:
    """Print and return whether two DataFrames have the same rows, duplicates included."""
    columns = expected.columns
    missing = expected.exceptAll(actual.select(columns)).count()
    surplus = actual.select(columns).exceptAll(expected).count()
    rows = actual.count()
    if missing or surplus:
        say.print(f"   {name:<10} [red]different[/]: {missing} rows missing, {surplus} too many")
        return False
    say.print(f"   {name:<10} [green]equal[/]: {rows:,} rows, none missing, none too many")
    return True


def print_totals(delays: DataFrame) -> None:
    """The running totals per carrier, largest first."""
    table = Table("carrier", box=None, padding=(0, 2, 0, 3), header_style="dim")
    table.add_column("flights", justify="right")
    table.add_column("total delay, min", justify="right")
    totals: Sequence[Any] = delays.orderBy("flights", ascending=False).take(50)
    for row in totals:
        table.add_row(row["carrier"], f"{row['flights']:,}", f"{row['delay']:,.0f}")
    say.print(table)


def farewell() -> str:
    """The paths of the tables, and how to read them."""
    path = (TABLES / "delays").absolute()
    run = Path(os.path.relpath(Path(sys.executable).with_name("txn")))
    return f"""[bold green]Every flight counted exactly once.[/]
   tables     {TABLES.absolute()} (ordinary Delta tables)
   Spark      spark.read.format("delta").load("{path}").show()
   deltalake  DeltaTable("{path}").to_pyarrow_table()
   history    {run} history flights --zookeeper embedded:{ZOOKEEPER}"""


if __name__ == "__main__":
    sys.exit(main())
