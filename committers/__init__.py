"""Durable ends of a stream: Delta tables that publish staged files in txid order."""
