"""Values and threads that the rest of the engine stands on."""
