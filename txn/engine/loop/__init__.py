"""One order of the coordinator after the other, and the threads that carry them out."""
