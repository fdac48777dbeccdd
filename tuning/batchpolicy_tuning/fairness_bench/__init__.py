"""Fairness between tenants beside latency: what ``batchpolicy bench fairness`` measures."""
