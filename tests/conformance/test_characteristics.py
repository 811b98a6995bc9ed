"""The table of docs/adapters.md is what the adapters say of themselves, and all of them are in it."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

from ordered_pubsub.adapter import Capabilities, scheme_of
from ordered_pubsub.testing.characteristics import MODES, row, table
from ordered_pubsub_adapters import mqtt, nats, rabbitmq
from ordered_pubsub_adapters.urls import COMMON, UrlRules

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- characteristics: begin -->\n", "\n<!-- characteristics: end -->"


def page() -> str:
    """The page about the adapters."""
    return (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def schemes() -> dict[str, str]:
    """The schemes of this distribution, and the classes behind them."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options.entry_points"]["ordered_pubsub.adapters"].split("\n")
    return dict(line.split(" = ") for line in lines if line)


def test_the_table_is_what_is_generated() -> None:
    """python -m ordered_pubsub.testing.characteristics prints it."""
    assert page().partition(BEGIN)[2].partition(END)[0] == table()


def test_every_adapter_is_in_the_table() -> None:
    """By one of its schemes at least."""
    shown = {schemes()[scheme_of(url)] for url in MODES}
    assert set(schemes().values()) - shown == set()


def test_every_scheme_is_on_the_page() -> None:
    """Also those for TLS."""
    assert [scheme for scheme in schemes() if f"`{scheme}://`" not in page()] == []


@pytest.mark.parametrize("rules", [mqtt.RULES, nats.RULES, rabbitmq.URLS])
def test_every_parameter_of_a_url_is_on_the_page(rules: UrlRules) -> None:
    """Those of all brokers, and those of one."""
    assert [name for name in (*rules.parameters, *COMMON) if f"`{name}`" not in page()] == []


def test_a_row_says_what_the_record_says() -> None:
    """Field by field."""
    record = Capabilities(
        loses=True, reorders=False, duplicates=True, keeps_while_away=False, carries_headers=True, confirms=False
    )
    assert row("x://", "x", record) == "| `x://` | x | yes | no | yes | no | yes | no |"
