"""Hypothesis on machines that are busy with other things: no deadline per example."""

from hypothesis import HealthCheck, settings

settings.register_profile("spec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spec")
