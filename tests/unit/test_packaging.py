"""What setup.cfg and tox.ini promise is what the tree and the installed distribution hold."""

from __future__ import annotations

import re
import subprocess
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDER_OF_ROOT = {
    "ordered_pubsub": ROOT / "ordered_pubsub",
    "ordered_pubsub_adapters": ROOT / "adapters" / "ordered_pubsub_adapters",
}
"""The two root packages, and where each has its files."""

# Bracketed so that these lines are not what they look for.
MACHINE_PATHS = re.compile(rb"/(?:home|Users)/\w|/root[/]|\b[A-Z]:\\Users\b")


def read(name: str) -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / name, encoding="utf-8")
    return config


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def packages_in_tree(root: str) -> set[str]:
    folder = FOLDER_OF_ROOT[root]
    return {".".join((root, *init.parent.relative_to(folder).parts)) for init in folder.rglob("__init__.py")}


def files_of_project() -> list[Path]:
    """Tracked files, and new ones that nothing tells git to ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name.decode() for name in listing.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("root", FOLDER_OF_ROOT)
def test_every_package_in_the_tree_is_listed(root: str) -> None:
    """A package that setup.cfg forgets is missing from the wheel."""
    listed = set(lines(read("setup.cfg")["options"]["packages"]))

    assert packages_in_tree(root) - listed == set()


def test_every_listed_package_is_in_the_tree() -> None:
    """A package that was removed or renamed is removed or renamed in setup.cfg too."""
    listed = set(lines(read("setup.cfg")["options"]["packages"]))

    assert listed - set().union(*map(packages_in_tree, FOLDER_OF_ROOT)) == set()


@pytest.mark.parametrize("root", FOLDER_OF_ROOT)
def test_both_roots_say_that_they_are_typed(root: str) -> None:
    """Type checkers believe the annotations of an installed package only if it has `py.typed`."""
    assert (FOLDER_OF_ROOT[root] / "py.typed").is_file()


def test_the_command_loads() -> None:
    """`ordered-pubsub` on a shell's command line reaches something that can be called."""
    (command,) = distribution("ordered-pubsub").entry_points.select(group="console_scripts", name="ordered-pubsub")

    assert callable(command.load())


def test_every_adapter_that_is_registered_loads() -> None:
    """A scheme of ours is found the way anybody else's is, and leads to a class."""
    adapters = distribution("ordered-pubsub").entry_points.select(group="ordered_pubsub.adapters")

    assert {adapter.name: isinstance(adapter.load(), type) for adapter in adapters} == dict.fromkeys(
        ("amqp", "amqps", "memory", "mqtt", "mqtts", "nats", "tls"), True
    )


def test_the_extras_are_those_that_are_documented() -> None:
    """`pip install 'ordered-pubsub[nats]'` only warns of an extra that does not exist, so a name must not get lost."""
    extras = distribution("ordered-pubsub").metadata.get_all("Provides-Extra")

    assert set(extras or []) == {"mqtt", "nats", "rabbitmq", "fast", "spark", "all", "test", "bench"}


def test_every_python_that_is_claimed_has_an_environment_that_tests_it() -> None:
    """The classifiers of setup.cfg and the environments of tox.ini name the same versions."""
    classifiers = lines(read("setup.cfg")["metadata"]["classifiers"])
    claimed = {found[1] + found[2] for line in classifiers if (found := re.search(r":: (3)\.(\d+)$", line))}
    tested = {name.removeprefix("py") for name in lines(read("tox.ini")["tox"]["env_list"]) if name.startswith("py")}

    assert claimed == tested


def test_no_file_refers_to_a_path_of_one_machine() -> None:
    """A home folder, or the place of this very checkout, means nothing to anybody else."""
    # A checkout right below the root of a container has a name that means many things, /src for one.
    here = [re.escape(str(ROOT).encode()) + rb"\b"] if len(ROOT.parts) > 2 else []
    forbidden = re.compile(b"|".join([MACHINE_PATHS.pattern, *here]))

    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in files_of_project()
        if (match := forbidden.search(path.read_bytes()))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("stamp", "installed"),
    [("package", "."), ("bench", "'.[bench]'"), ("prove", "'.[fast,test,bench]'")],
)
def test_make_installs_what_it_says(stamp: str, installed: str) -> None:
    command = ["make", "--dry-run", "--always-make", f".venv/.ready-{stamp}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert f"install --editable {installed} " in printed


def test_the_lowest_of_the_brokers_libraries_are_tested() -> None:
    """What setup.cfg asks for at least is what tox installs to run the conformance suite."""
    extras = read("setup.cfg")["options.extras_require"]
    asked = [line.split(",")[0] for name in ("mqtt", "nats", "rabbitmq") for line in lines(extras[name])]
    lowest, *_ = lines(read("tox.ini")["testenv:conformance-{lowest,pre}"]["commands_pre"])
    assert [word.replace("==", ">=") for word in lowest.split() if "==" in word] == asked
