"""`layout="log"`: partial aggregates, appended by commits and compacted in the background."""
