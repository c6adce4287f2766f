"""What differs between a program and what is durable, before a run. Needs no Spark."""
