"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

pytest_plugins = ["helpers.hanging"]

# What a property says does not depend on how fast a machine is, or on what else it has to do.
settings.register_profile("ordered-pubsub", deadline=None)
settings.load_profile("ordered-pubsub")

# A shell that runs the tests in the background has them ignore this, and whatever they start as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """`.ci/run` looks for it."""
    return f"tox environment: {os.environ.get('TOX_ENV_NAME', 'none')}"
