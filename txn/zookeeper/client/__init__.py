"""One connection to ZooKeeper: where, with what rights, and whether it lives."""
