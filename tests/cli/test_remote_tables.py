"""`txn run` with a table in an object store, as a user types it."""

from __future__ import annotations

from pathlib import Path

import deltalake

from tests.cli.test_driver import run
from tests.stores.s3 import S3Server, storage_options

PROGRAM = """
from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology

topology = Topology("t")
rows = topology.stream("rows", RateSpout(2, total=6))
rows.partition_persist(AppendTable("s3://{bucket}/rows", storage_options={options}))
"""


def test_a_table_on_s3_needs_no_jars_of_the_user(tmp_path: Path, s3: S3Server) -> None:
    """The command brings Spark's client of S3."""
    bucket, options = s3.bucket("typed"), storage_options(s3.url)
    program = PROGRAM.format(bucket=bucket, options=options)
    ended = run(tmp_path, "--until", "caught_up", program=program)
    assert ended.returncode == 0, ended.stderr
    table = deltalake.DeltaTable(f"s3://{bucket}/rows", storage_options=options)
    assert table.to_pyarrow_table().num_rows == 6
