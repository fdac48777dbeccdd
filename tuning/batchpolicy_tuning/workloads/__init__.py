"""Workloads to compare policies on: traces, and generators that draw them anew."""
