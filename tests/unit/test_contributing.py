"""What CONTRIBUTING.md and tox.ini say of the tests is so."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOWEST = re.findall(
    r"^\| `(tests/[\w/]+\.py)::(\w+)(?:\[.*?\])?` \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
)


def commands() -> dict[str, str]:
    """What each environment runs."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    return {name: section["commands"] for name, section in config.items() if "commands" in section}


def test_twenty_tests_are_named() -> None:
    assert len(set(SLOWEST)) == 20


@pytest.mark.parametrize(("file", "name", "why"), SLOWEST, ids=[name for _, name, _ in SLOWEST])
def test_a_test_that_is_named_exists(file: str, name: str, why: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_each_folder_of_tests_is_run() -> None:
    """A folder that no environment names is never run."""
    folders = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("test_*.py")}
    run = set(re.findall(r"\btests/\w+(?= |}|$)", " ".join(commands().values())))
    assert folders - run == set()


def test_what_is_too_heavy_for_each_interpreter_runs_on_one() -> None:
    """What the environments of the interpreters leave out, another one takes, of the same folders."""
    each, heavy = commands()["testenv"], commands()["testenv:heavy"]
    assert '-m "not heavy"' in each
    assert "-m heavy" in heavy
    assert set(re.findall(r"tests/\w+", each)) <= set(re.findall(r"tests/\w+", heavy))
