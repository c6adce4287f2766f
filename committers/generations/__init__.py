"""A table's next generation: the same rows in another shape, beside those that readers see."""
