"""What `txn run` shows and notes while a topology runs."""
