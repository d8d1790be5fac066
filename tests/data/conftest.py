"""A busy machine must not turn a slow example into a failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("data", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("data")
