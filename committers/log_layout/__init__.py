"""`layout="log"`: partial aggregates that are appended, and folded aside."""
