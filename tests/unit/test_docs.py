"""What the documentation shows runs, what it links to exists, and what it lists is complete."""

from __future__ import annotations

import gc
import re
from configparser import ConfigParser
from pathlib import Path

import pytest

import ordered_pubsub.core
from ordered_pubsub.testing import checkers, record, simulation, states
from ordered_pubsub.testing.world import CRASH_POINTS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
"""An example, and what it prints if that is shown below it."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
INVARIANT = re.compile(r"\"(I\d+|order)\"")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def examples() -> list[object]:
    """Blocks of Python that begin with the comment `# runs`, with the place where they stand."""
    blocks: list[object] = []
    for page in PAGES:
        text = text_of(page)
        for found in FENCE.finditer(text):
            if found[1].startswith("# runs\n"):
                line = text.count("\n", 0, found.start()) + 2
                blocks.append(pytest.param(page, line, found[1], found[2], id=f"{name_of(page)}:{line}"))
    return blocks


def links() -> list[object]:
    """Links within the checkout, without those in code."""
    found: list[object] = []
    for page in PAGES:
        for target in LINK.findall(CODE.sub("", text_of(page))):
            if "://" not in target and not target.startswith("mailto:"):
                found.append(pytest.param(page, target, id=f"{name_of(page)}->{target}"))
    return found


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, after the rule of GitHub."""
    headings = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text_of(page)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "line", "code", "output"), examples())
def test_an_example_runs_and_prints_what_is_shown(
    page: Path, line: int, code: str, output: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    # With as many empty lines before it as the page has, so that a failure names the line of the page.
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "example"})
    gc.collect()  # an example that leaves something open fails itself, rather than the test that comes next

    assert output is None or capsys.readouterr().out == output


def test_there_are_examples_that_run() -> None:
    assert len(examples()) >= 3


@pytest.mark.parametrize(("page", "target"), links())
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    there = (page.parent / file).resolve() if file else page
    assert there.exists(), f"{name_of(page)} links to {target}"
    assert there.is_relative_to(ROOT)
    if anchor:
        assert anchor in anchors(there), f"{name_of(there)} has no heading for #{anchor}"


def test_every_crash_point_is_described() -> None:
    described = re.findall(r"^\| `([\w:-]+)` \|", text_of(ROOT / "docs" / "simulation.md"), re.MULTILINE)
    assert [point for point in described if point in CRASH_POINTS] == list(CRASH_POINTS)


def test_every_invariant_that_a_checker_names_is_described() -> None:
    page = ROOT / "docs" / "invariants.md"
    described = {heading.partition(":")[0] for heading in HEADING.findall(text_of(page))}
    named = {
        name
        for module in (checkers, record, simulation)
        for name in INVARIANT.findall(Path(str(module.__file__)).read_text(encoding="utf-8"))
    }
    assert named
    assert named <= described


def test_every_function_that_the_page_of_invariants_names_exists() -> None:
    """Such as `Stage.next_stage` or `_check_positions`: the code may have moved on."""
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for room in ("core", "testing")
        for path in sorted((ROOT / "ordered_pubsub" / room).rglob("*.py"))
    )
    named = re.findall(r"`(?:(\w+)\.)?(\w+)`", text_of(ROOT / "docs" / "invariants.md"))
    words = {word for pair in named for word in pair if word and pair[1] != "py"}
    assert words
    assert {word for word in words if not re.search(rf"\b{word}\b", source)} == set()


def test_every_dependency_is_justified() -> None:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    options = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    lines = [line for option in options for line in option.splitlines() if line and not line.startswith("#")]
    required = {re.split(r"[<>=!~;\[ ]", line)[0] for line in lines} - {"ordered-pubsub"}
    page = text_of(ROOT / "docs" / "dependencies.md")
    assert "attrs" in required
    assert {name for name in required if f"`{name}`" not in page} == set()


def modules_of(room: Path) -> set[str]:
    """Modules and packages of a package, but for what only starts it."""
    files = {path.stem for path in room.glob("*.py") if not path.stem.startswith("__")}
    return files | {path.parent.name for path in room.glob("*/__init__.py")}


def table_below(page: Path, line: str) -> str:
    """The first table after a line of a page."""
    found = re.search(rf"^{re.escape(line)}\n\n((?:\|.*\n)+)", text_of(page), re.MULTILINE)
    assert found, f"{name_of(page)} has no table below {line!r}"
    return found[1]


TABLES = {
    "core": "In the core, in this order of reading; each package uses only what is above it:",
    "wire": "In the wire package:",
    "client": "In the client package:",
    "server": "In the server package:",
    "testing": "In the testing package:",
}


@pytest.mark.parametrize(("room", "line"), TABLES.items())
def test_the_page_of_the_architecture_names_every_module_and_no_other(room: str, line: str) -> None:
    folder = ROOT / "ordered_pubsub" / room
    rows = table_below(ROOT / "docs" / "architecture.md", line).splitlines()[2:]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    inner = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    packages = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}

    assert sorted(listed) == sorted(modules_of(folder))
    assert {name for package in packages - {"conformance"} for name in modules_of(folder / package)} <= inner


def test_the_core_itself_names_every_module_and_no_other() -> None:
    said = str(ordered_pubsub.core.__doc__)

    assert sorted(re.findall(r"`(\w+)`", said)) == sorted(modules_of(ROOT / "ordered_pubsub" / "core"))


def test_the_page_of_states_is_drawn_from_the_tables_of_the_code() -> None:
    assert text_of(ROOT / "docs" / "states.md") == states.page(), "run `make states`"


def test_the_glossary_is_in_the_order_of_the_alphabet() -> None:
    words = re.findall(r"^\| ([^|]+) \|", text_of(ROOT / "docs" / "glossary.md"), re.MULTILINE)[2:]

    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))


# -- what docs/security.md claims ----------------------------------------------------------------------------------------

SECURITY = ROOT / "docs" / "security.md"
TEST_ID = re.compile(r"`(test_\w+)::(test_\w+)`")


def claims() -> list[str]:
    """The rows of the tables that say who is trusted, and what a stage does."""
    text = text_of(SECURITY)
    tables = text[text.index("## Who is trusted") : text.index("## The tag")]
    return [
        line for line in tables.splitlines() if line.startswith("| ") and "---" not in line and "seen in" not in line
    ]


def test_security_begins_with_who_is_trusted_with_what() -> None:
    assert HEADING.findall(text_of(SECURITY))[:2] == ["Security", "Who is trusted with what"]


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.split("|")[1].strip())
def test_a_claim_has_tests(claim: str) -> None:
    assert TEST_ID.findall(claim.split("|")[-2])


def test_the_tests_of_claims_are_there() -> None:
    there = {
        (file.stem, name)
        for file in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert sorted(set(TEST_ID.findall(text_of(SECURITY))) - there) == []
