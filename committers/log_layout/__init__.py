"""`layout="log"`: partial aggregates that are appended, and compacted aside."""
