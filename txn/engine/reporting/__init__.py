"""Report a run: its batches and its state, to observers and to the log."""
