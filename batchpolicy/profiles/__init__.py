"""Step costs fitted to measured hardware, each with its origin, error and envelope."""

from batchpolicy.profiles.loading import load_profile, profile_names
from batchpolicy.profiles.profile import (
    EXTENDED_CONTEXT_TOKENS,
    Calibration,
    Envelope,
    Errors,
    Fit,
    KvMemory,
    Limits,
    MetricErrors,
    Origin,
    Profile,
)

__all__ = [
    "EXTENDED_CONTEXT_TOKENS",
    "Calibration",
    "Envelope",
    "Errors",
    "Fit",
    "KvMemory",
    "Limits",
    "MetricErrors",
    "Origin",
    "Profile",
    "load_profile",
    "profile_names",
]
