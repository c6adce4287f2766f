"""Topics of Kafka."""

from __future__ import annotations

from spouts.kafka.spout import KafkaSpout

__all__ = ["KafkaSpout"]
