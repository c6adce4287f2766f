"""`python -m txn` is `txn`."""

from __future__ import annotations

from txn.cli.app import main

if __name__ == "__main__":
    main()
