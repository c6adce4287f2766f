"""The folder of a file spout: what lies in it, what of it was taken, and what changed since."""
