"""The adapter of docs/write-an-adapter.md, a distribution of its own, passes the suite like ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordered_pubsub.testing.brokers import Broker
from ordered_pubsub.testing.conformance import Subject, applicable, run_check

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party_adapter"
from ordered_pubsub_hub.adapter import CAPABILITIES, HubAdapter
