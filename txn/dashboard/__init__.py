"""The page: what `txn.operations.watching` knows, served over HTTP to a browser, read-only."""
