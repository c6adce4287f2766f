"""Do the work of one station for an attempt: read, compute, stage, commit."""
