"""The page: what `txn.dashboard.watching` knows, served over HTTP to a browser, read-only."""
