"""`txn doctor`: check everything that a topology needs, and report it."""
