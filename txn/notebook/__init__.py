"""Show charts of txids, and a run live, in a notebook. Takes values, and knows no run."""
