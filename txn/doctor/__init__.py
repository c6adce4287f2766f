"""`txn doctor`: looks at everything that a topology stands on, and says what it finds."""
