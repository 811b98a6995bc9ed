"""The page about the configuration is complete, and its example is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from ordered_pubsub.config.advice import find_advice
from ordered_pubsub.config.overlay import variables
from ordered_pubsub.config.reading import read_text
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import (
    RIGHTS,
    ClientSection,
    ClientTls,
    Configuration,
    GroupSection,
    IdentityLimits,
    IdentitySection,
    LimitsSection,
    RetentionSection,
    Rights,
    SecuritySection,
    StageSection,
    StageTls,
    TimesSection,
    TopicSection,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
TABLES = {
    "At the top of the file": Configuration,
    "[security]": SecuritySection,
    "[client]": ClientSection,
    "[client.tls]": ClientTls,
    "[[stage]]": StageSection,
    "[stage.tls]": StageTls,
    "[[topic]]": TopicSection,
    "[topic.retention]": RetentionSection,
    "[[group]]": GroupSection,
    "[[identity]]": IdentitySection,
    "[identity.allow] and [identity.deny]": Rights,
    "[identity.limits]": IdentityLimits,
    "[limits]": LimitsSection,
    "[times]": TimesSection,
}


def rows(heading: str) -> dict[str, str]:
    """Each key of a table of the page, with its default."""
    part = re.split(r"^#+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE))


def default_of(field: Any) -> str | None:
    """What the page should say; None if it is said in words."""
    if field.default is attrs.NOTHING:
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, (bool, int, float, str)):
        return f"`{json.dumps(field.default)}`"
    return "`[]`" if field.default == () else None


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_is_described_with_its_default(heading: str) -> None:
    record, described = TABLES[heading], rows(heading)
    fields = {field.name: field for field in attrs.fields(record)}
    keys = [key for key, kind in keys_of(record).items() if record is not Configuration or kind.section is None]

    assert list(described) == keys
    for key in keys:
        expected = default_of(fields[key])
        assert expected is None or described[key] == expected, key


def test_every_table_is_described() -> None:
    found = {
        kind.section for record in TABLES.values() for kind in keys_of(record).values() if kind.section is not None
    }

    assert found == set(TABLES.values()) - {Configuration}


def test_the_rights_are_those_that_are_described() -> None:
    assert set(RIGHTS) == set(keys_of(Rights))


def test_the_example_is_one_that_needs_nothing_and_no_advice() -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    configuration = read_text(example)

    assert [stage.name for stage in configuration.stages] == ["eu", "us"]
    assert not configuration.group
    assert find_advice(configuration) == ()


def test_the_variables_that_are_named_exist() -> None:
    others = {"ORDERED_PUBSUB_", "ORDERED_PUBSUB_CONFIG", "ORDERED_PUBSUB_SEEDS", "ORDERED_PUBSUB_TEST_"}

    assert set(re.findall(r"ORDERED_PUBSUB_\w*", PAGE)) - others <= set(variables())
