"""Tables with nothing but keys and final values of a state, kept up beside the commit turns."""
