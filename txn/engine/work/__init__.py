"""What one station does with an attempt: read, compute, stage, commit."""
