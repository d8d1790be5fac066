"""No deadlines for hypothesis, so tests pass on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("data", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("data")
