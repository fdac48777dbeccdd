"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How fast the machine is today is no property of ours.
SLOW = [HealthCheck.too_slow]
settings.register_profile("any machine", deadline=None, suppress_health_check=SLOW)
settings.load_profile("any machine")
