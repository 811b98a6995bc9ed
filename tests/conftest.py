"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["helpers.hanging"]

# What a property says does not depend on how fast a machine is, or on what else it has to do.
settings.register_profile("ordered-pubsub", deadline=None)
settings.load_profile("ordered-pubsub")
