"""`txn run` with a table in an object store, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deltalake

from tests.stores.s3 import S3Server, storage_options

ROOT = Path(__file__).parent.parent.parent
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
    (tmp_path / "program.py").write_text(program, "utf-8")
    command = [sys.executable, "-m", "txn", "run", "program.py:topology", "--master", "local[1]"]
    ended = subprocess.run(
        [*command, "--until", "caught_up"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    table = deltalake.DeltaTable(f"s3://{bucket}/rows", storage_options=options)
    assert table.to_pyarrow_table().num_rows == 6
