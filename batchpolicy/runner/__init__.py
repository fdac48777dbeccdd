"""What an adapter holds: events in, one plan a step out, whatever the policy does."""

from batchpolicy.runner.facts import EngineFacts, Plan, Probe, RequestFacts, Tick
from batchpolicy.runner.runner import PolicyRunner

__all__ = ["EngineFacts", "Plan", "PolicyRunner", "Probe", "RequestFacts", "Tick"]
