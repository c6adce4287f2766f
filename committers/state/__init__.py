"""The parts that both layouts of a state table share."""
