"""Policies compared and tuned: workloads, statistics, the A/B harness."""
