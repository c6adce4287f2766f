"""Sources of micro-batches: plugins of `txn.interfaces.Spout`. None is imported here."""
