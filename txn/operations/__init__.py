"""What an operator can ask of a topology. Returns values, prints nothing."""
