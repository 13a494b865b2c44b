"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast examples are drawn says how busy the machine is, and nothing of what is tested.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
