"""A process that stages into an S3 bucket, step by step: its test stands before the bucket.

    python -m tests.faults.staging_driver URL BUCKET MASTER

Reads one step per line and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from committers.aggregates import Count, Sum
from committers.staging.area import StagingArea
from committers.state_table import StateTable
from tests.committers.conftest import publication
from tests.stores.s3 import storage_options
from tests.thorough import SHORT_LIVED
from txn.attempts import TransactionAttempt
from txn.errors import TxnError
from txn.interfaces import Committer, CommitterContext
from txn.machine.jars import S3A_PACKAGES
from txn.session import delta_session
from txn.spark.own_session import own_session
from txn.storage.storage import Storage


def main() -> None:
    url, bucket, master = sys.argv[1:]
    conf = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SHORT_LIVED,
    }
    spark = delta_session("staging", master, conf, packages=S3A_PACKAGES)
    options = storage_options(url)
    session = own_session(spark)
    area = StagingArea(Storage(f"s3://{bucket}/t", options), session=lambda: session)
    rows = spark.range(0, 1000, 1, 1).selectExpr("id AS k", "id * 2 AS v")
    table = StateTable(f"s3://{bucket}/u", buckets=16, storage_options=options)
    upsert: Committer = table.bind(["k"], {"n": Count(), "v": Sum("v")})
    turns = epoch = 0
    say({"ready": True})
    for line in sys.stdin:
        match line.strip():
            case "lead":
                epoch += 1
                upsert.open(spark, CommitterContext("t", epoch), upsert.partials(rows).schema)
                upsert.fence()
                say({})
            case "stage":
                staged = area.stage(rows, TransactionAttempt(7))
                say({"files": [file.path for file in staged.files], "rows": staged.rows})
            case "discard":
                area.discard(TransactionAttempt(7))
                say({})
            case "prepare":
                turns += 1
                partials = upsert.stage(upsert.partials(rows), TransactionAttempt(turns))
                own = publication(turns, epoch=epoch, rows=partials.rows)
                try:
                    prepared = upsert.prepare(partials, own)
                except TxnError as error:
                    say({"error": repr(error)})
                    continue
                say({"adds": len(prepared.adds), "removes": len(prepared.removes)})
            case "give up":
                upsert.discard(partials.attempt)
                turns -= 1
                say({})
            case "publish":
                upsert.publish(prepared, own)
                upsert.committed(partials.attempt)
                say({})
            case "read":
                found = table.read(spark).selectExpr("count(*) c", "sum(n) n", "sum(v) v").first()
                say(found.asDict() if found else {})
    spark.stop()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
