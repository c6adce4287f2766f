"""Views per page from a Kafka topic, each record counted exactly once.

    $ TXN_KAFKA=localhost:9092 python examples/page_views.py
    +----+-----+
    |page|views|
    +----+-----+
    |   /|   86|
    |  /a|   80|
    |  /b|   74|
    +----+-----+

A record's value is JSON, {"page": "/home", "user": "ann"}. TXN_KAFKA names the brokers.
`txn run examples/page_views.py:topology` goes on until you stop it.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.kafka import KafkaSpout
from txn import Topology
from txn.session import delta_session


def parse(records: DataFrame) -> DataFrame:
    """The fields of each record's JSON as columns."""
    value = sf.from_json(sf.col("value").cast("string"), "page string, user string")
    return records.select(value.alias("view")).select("view.*")


topology = Topology("page-views")
kafka = KafkaSpout(os.environ.get("TXN_KAFKA", "localhost:9092"), topics=["page-views"])
views = topology.stream("records", kafka).transform(parse)
# Opaque, the default, as the spout is: right even if retention makes a replay shorter.
counts = StateTable("warehouse/page_views")
views.group_by("page").persistent_aggregate(counts, views=Count())

if __name__ == "__main__":
    spark = delta_session("page-views", packages=KafkaSpout.packages)
    topology.run(spark, until="caught_up")
    counts.read(spark).orderBy("page").show()
