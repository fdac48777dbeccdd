"""Everything batchpolicy raises on purpose.

* BatchPolicyError
  x ConfigError
    + UnknownPlugin
  x WorkloadError
    + StepLimitReached
  x EngineUnavailable
  x PolicyContractError
  x Interrupted
"""

from __future__ import annotations


class BatchPolicyError(Exception):
    """Base class: catch this to catch anything raised on purpose."""


# A ValueError too, so that pydantic collects it with the field it was raised for.
class ConfigError(BatchPolicyError, ValueError):
    """A file, option or value that the user gave cannot be used."""


class UnknownPlugin(ConfigError):
    """No installed plugin has that name."""


class WorkloadError(BatchPolicyError):
    """A trace or workload is empty, unsorted, or asks what no engine can serve."""


class StepLimitReached(WorkloadError):
    """A run was ended before it had served its workload, so that it measured nothing."""


class EngineUnavailable(BatchPolicyError):
    """The engine is not installed, or this version of it cannot be driven."""


class PolicyContractError(BatchPolicyError):
    """A policy broke a promise of the interface."""


class Interrupted(BatchPolicyError):
    """Ctrl-C ended a command that says itself what was kept, and how to go on."""
