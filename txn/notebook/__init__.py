"""What a notebook shows: charts of txids, and a run as it goes. Takes values, and knows no run."""
