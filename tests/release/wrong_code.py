"""Mistakes in a user's program: each checker finds those in the lines that say so, and no other."""

from __future__ import annotations

from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from txn import Topology
from txn.interfaces import Spout
from txn.observers import BatchCommitted

topology = Topology("shop")
orders = topology.stream("orders", FileSpout("*.csv", format="csv", schema="n int"))
KafkaSpout("host:9092", first_poll="newest")  # mistake: no such strategy
orders.persistent_aggregate(StateTable("totals"), n="count")  # mistake: not an Aggregate
orders.expect("n", "n > 0", on_violation="ignore")  # mistake: no such treatment
topology.stream("more", Spout)  # mistake: a class, not a spout


def committed(event: BatchCommitted) -> str:
    return event.attempt.txid  # mistake: an int
