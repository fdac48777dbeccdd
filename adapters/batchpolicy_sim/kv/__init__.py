"""KV memory in blocks."""
