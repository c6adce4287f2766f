"""The flights topology, killed midway, resumed, and compared with plain Spark queries.

$ make demo
4. Compare each table with one plain Spark query over the same files
   delays: 16 rows, 0 missing, 0 too many
   routes: 224 rows, 0 missing, 0 too many
   cancelled: 8,255 rows, 0 missing, 0 too many
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples import flights
from examples.prepare_flights import prepare_flights
from txn.session import delta_session


def run(kill_after: int | None = None) -> None:
    """Run the topology in a process of its own; kill it with SIGKILL after this txid."""
    command = f"{sys.executable} -m txn run {flights.__file__}:topology --until caught_up --json"
    log = None if kill_after is None else subprocess.DEVNULL  # Java's last words after the kill
    with subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=log, text=True) as child:
        for event in map(json.loads, child.stdout or ()):
            if event["event"] == "committed":
                print(f"   txid {event['txid']} is committed")
                if event["txid"] == kill_after:
                    child.kill()
    if child.returncode and kill_after is None:
        sys.exit(child.returncode)


def compare(table: str, query: str) -> None:
    """Exit unless a table has the rows that a query over all files has, duplicates included."""
    expected = spark.sql(query)
    actual = spark.read.format("delta").load(f"warehouse/{table}").select(expected.columns)
    missing, surplus = expected.exceptAll(actual).count(), actual.exceptAll(expected).count()
    print(f"   {table}: {actual.count():,} rows, {missing} missing, {surplus} too many")
    if missing or surplus:
        sys.exit("The tables differ.")


os.chdir(tempfile.mkdtemp(prefix="txn-demo-"))
print(f"1. Prepare twelve files, one a month, in {Path.cwd()}")
prepare_flights(Path("data/flights"))
print("2. Run, and kill it after txid 5")
run(kill_after=5)
print("3. Run it again")
run()
print("4. Compare each table with one plain Spark query over the same files")
spark = delta_session("demo")
files = spark.read.csv("data/flights/*.csv", schema=flights.SCHEMA, header=True)
files.selectExpr("*", "CAST(month AS bigint) AS txid").createTempView("f")  # a file a batch
compare("delays", "SELECT carrier, count(*) AS flights, sum(dep_delay) AS delay FROM f GROUP BY 1")
compare("routes", "SELECT origin, dest, count(*) AS flights FROM f GROUP BY 1, 2")
compare("cancelled", "SELECT * FROM f WHERE dep_time IS NULL")
