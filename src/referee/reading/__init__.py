"""Reads `.pkl`, `.npy` and `.pt` files of others as values: nothing in them can run, and little of theirs can hurt."""
