"""The adapter of docs/write-an-adapter.md, a distribution of its own, passes the suite like ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.hub import EXAMPLE, Hub
from ordered_pubsub.testing.conformance import Subject, applicable, run_check
from ordered_pubsub_hub.adapter import CAPABILITIES, HubAdapter

INSTALL_S = 120.0


HUB = Hub()
SUBJECT = Subject(
    make=lambda: HubAdapter(HUB.url),
    capabilities=CAPABILITIES,
    kill=HUB.kill,
    start=HUB.start,
    make_at=lambda host, port: HubAdapter(HUB.url_at(host, port)),
    address=lambda: HUB.address,
)


@pytest.fixture(scope="module", autouse=True)
def _hub() -> Iterator[None]:
    with HUB:
        yield


@pytest.mark.parametrize("name", applicable(SUBJECT))
async def test_third_party(name: str) -> None:
    """Each check that applies to the hub."""
    await run_check(name, SUBJECT)


def test_it_is_found_by_its_scheme_as_soon_as_it_is_installed(tmp_path: Path) -> None:
    """pip, an entry point, and nothing else."""
    copy, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, copy)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(copy)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"pip could not install the example; it needs a package index:\n{done.stderr}"

    load = "from ordered_pubsub.adapter import load_adapter; print(type(load_adapter('hub://127.0.0.1:1')).__name__)"
    found = subprocess.run(
        [sys.executable, "-c", load],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert (found.stdout.strip(), found.stderr) == ("HubAdapter", "")
