"""How much load an engine carries before one request in a hundred misses its targets."""
