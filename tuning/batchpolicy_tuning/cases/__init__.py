"""Small workloads, each with the property that a sound policy shows on it."""
