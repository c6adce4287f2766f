"""The protocol, pure: values in, values out. No Spark, no ZooKeeper, no clock, no file."""
