"""What a run reports: its batches, its state, and who is told."""
