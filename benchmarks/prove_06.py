"""`make prove-06`: run what the sixth milestone must show, line by line, and print the figures.

The client as a machine that the simulation runs, a house of rooms, thin adapters, tests that are fast and cannot hang. Each line
ends in `holds`, `FAILS` or `NOT RUN` (with what it lacks); the exit code is 0 only if all hold. `--only machine,rooms` runs some,
`--list` names them. What is timed needs a machine with nothing else to do.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from prove_05 import measured
from proving import ROOT, expect, main, run, tested

BEFORE = "a1780b2"
"""The commit before: the client decides in its asyncio code, and the core is one room."""
SEEDS, FIRST = 20_000, 200_000
"""Worlds that no test draws."""
MUTANTS_LEAST = 95
LEAST, COSTS_MIN = 0.95, 60
CI_S_MAX = 20 * 60
NOT_BROKERS = ("__init__", "memory", "names", "urls", "credentials", "headers")
LIBRARY_NOT = ("testing", "bench")
HOSTS = ("application", "client_host", "ens_client", "packer", "stage_host")
"""What was one module then."""


def lines_of(paths: list[Path]) -> int:
    """How many lines these files have."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def machine() -> str:
    """The simulation runs the client's machine: 20,000 new seeds, invariants after every input, no violation."""
    before = len(run("git", "show", f"{BEFORE}:ordered_pubsub/testing/hosts.py").splitlines())
    after = lines_of([ROOT / f"ordered_pubsub/testing/{name}.py" for name in HOSTS])
    said = run(
        sys.executable, "-m", "ordered_pubsub.testing.soak",
        "--first", str(FIRST), "--seeds", str(SEEDS), "--workers", "2",
    )  # fmt: skip
    print(said, end="")
    points = re.search(r"(\d+) of (\d+) crash points hit", said)
    expect("0 worlds with a violation" in said, "a seed found a violation: see above")
    expect(points is not None and points[1] == points[2], "not all crash points were hit")
    hosts = f"testing/hosts.py had {before:,} lines, its parts have {after:,}"
    return f"{SEEDS:,} seeds; all {points[1] if points else 0} crash points; {hosts}"


def mutants() -> str:
    """All mutants are found, old ones and those of the client."""
    rows = re.findall(r"^\| `[a-z-]+` \|", (ROOT / "docs/mutants.md").read_text(), re.MULTILINE)
    expect(len(rows) >= MUTANTS_LEAST, f"there are only {len(rows)} mutants")
    return f"{len(rows)} mutants: {tested('tests/simulation/test_mutants.py')}"


def states() -> str:
    """What becomes of a client, a request, a subscription and its changes is data, and nothing else happens."""
    return tested("tests/unit/test_states.py", "tests/unit/test_client_machine.py", "tests/unit/test_outbox.py")


def rooms() -> str:
    """Imports point one way between all rooms, and docs/architecture.md has a line for each."""
    library = [
        path
        for path in (ROOT / "ordered_pubsub").rglob("*.py")
        if path.relative_to(ROOT / "ordered_pubsub").parts[0] not in LIBRARY_NOT
    ]
    found = tested("tests/unit/test_layers.py", "tests/unit/test_docs.py")
    return f"{found}; library {lines_of(library):,} lines (aim: 30,000)"


def adapters() -> str:
    """The adapters pass on the lowest and the newest release of each library, and on its next one."""
    folder = ROOT / "adapters/ordered_pubsub_adapters"
    found = [path for path in folder.glob("*.py") if path.stem not in NOT_BROKERS]
    run(sys.executable, "-m", "tox", "run", "--quiet", "-e", "conformance-lowest,conformance-pre")
    newest = tested(
        "tests/conformance/test_mqtt.py", "tests/conformance/test_nats.py", "tests/conformance/test_rabbitmq.py"
    )
    return f"{newest}; {lines_of(found):,} lines (aim: 2,300)"


def figures() -> str:
    """Core, all brokers, replay and Spark beside the commit before: at least 0.95 times."""
    measured("before_after", BEFORE, "--least", str(LEAST), "--minutes", str(COSTS_MIN))
    return f"beside {BEFORE}"


def integration() -> str:
    """`.ci/run` on a clean clone."""
    with TemporaryDirectory() as name:
        clone = Path(name) / "clone"
        run("git", "clone", "--quiet", str(ROOT), str(clone))
        begun = time.monotonic()
        ended = subprocess.run([str(clone / ".ci/run")], cwd=clone, check=False)
        took = time.monotonic() - begun
    expect(ended.returncode == 0, f".ci/run ended with {ended.returncode}")
    expect(took <= CI_S_MAX, f".ci/run took {took / 60:.1f} minutes")
    return f"{took / 60:.1f} minutes (aim: 15)"


LINES = {
    "machine": machine,
    "mutants": mutants,
    "states": states,
    "rooms": rooms,
    "adapters": adapters,
    "figures": figures,
    "integration": integration,
}

if __name__ == "__main__":
    sys.exit(main(LINES, __doc__))
