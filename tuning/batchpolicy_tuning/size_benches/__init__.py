"""Orders by size: what they gain at high load, and what their tails cost."""
