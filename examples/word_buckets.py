"""Counts of words, and the number of words by count: Storm's `TransactionalWords`.

    $ python examples/word_buckets.py
    +----+-----+
    |word|count|
    +----+-----+
    | cat|   12|
    | dog|   21|
    | eel|    1|
    | fox|   10|
    +----+-----+

    +------+-----+
    |bucket|words|
    +------+-----+
    |     0|    1|
    |     1|    2|
    |     2|    1|
    +------+-----+

The second table follows the changes in the first one: a word whose count goes from 9 to 12 leaves
bucket 0 (counts 0 to 9) and enters bucket 1. Both tables are committed with the same txid.
"""

from pyspark.sql import DataFrame

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

BATCHES = ["cat " * 9 + "dog " * 4, "cat " * 3 + "dog " * 7 + "eel", "dog " * 10 + "fox " * 10]


def moves(changed: DataFrame) -> DataFrame:
    """+1 for the bucket that a word enters, -1 for the one that it leaves."""
    moved = changed.where("NOT (count DIV 10 <=> prev_count DIV 10)")
    steps = "stack(2, count DIV 10, 1, prev_count DIV 10, -1) AS (bucket, step)"
    return moved.selectExpr(steps).where("bucket IS NOT NULL")


topology = Topology("word-buckets")
rows = [[(word,) for word in batch.split()] for batch in BATCHES]
words = topology.stream("words", MemoryTransactionalSpout(rows, "word string"))
by_word, by_bucket = StateTable("warehouse/word_counts"), StateTable("warehouse/word_buckets")
counts = words.group_by("word").persistent_aggregate(by_word, count=Count())
changes = counts.new_values().transform(moves)
changes.group_by("bucket").persistent_aggregate(by_bucket, words=Sum("step"))

if __name__ == "__main__":
    spark = delta_session("word-buckets")
    topology.run(spark, until="caught_up")
    by_word.read(spark).orderBy("word").show()
    by_bucket.read(spark).orderBy("bucket").show()
