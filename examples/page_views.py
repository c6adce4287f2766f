"""Views per page from a Kafka topic, each record counted exactly once.

    txn run examples/page_views.py:topology

A record's value is JSON, {"page": "/home", "user": "ann"}. TXN_KAFKA names the brokers.
"""

from __future__ import annotations

import os

from pyspark.sql import functions as sf

from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.kafka import KafkaSpout
from txn import Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")

topology = Topology("page-views")
records = topology.stream(
    "records",
    KafkaSpout(
        os.environ.get("TXN_KAFKA", "localhost:9092"),
        topics=["page-views"],
        first_poll="uncommitted_earliest",
        max_records_per_batch=100_000,
    ),
)
views = records.transform(
    lambda df: df.select(
        sf.from_json(sf.col("value").cast("string"), "page string, user string").alias("view")
    ).select("view.*")
)
# Opaque like the spout: right even if retention makes a replay shorter.
counts = views.group_by("page").persistent_aggregate(
    StateTable(f"{BASE}/tables/page_views", semantics="opaque"), views=Count()
)
