"""Showing a configuration, and comparing two.

`dump` is the whole of it as plain data, without secrets: no token, nothing of a URL that could be a password, and of a token's
hash only as much as tells two apart. `common` is what all stages of a system must have in common; it goes into the greeting
of two stages, with the line of each key, so that `differences` can tell both operators where to look. What another stage
sent is compared, shown in part, and trusted in nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ordered_pubsub.config import kinds
from ordered_pubsub.config.kinds import Path, redacted, shown, spell
from ordered_pubsub.config.lines import line_of
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import Configuration, TimesSection

HASH_DIGITS_SHOWN = 8
DIFFERENCES_SHOWN_MAX = 5
LINES = "lines"
LINES_MOST = 1 << 20
NOTHING = "nothing"


def dump(configuration: Configuration) -> dict[str, Any]:
    """Everything, defaults included, as plain data that may be shown."""
    plain: dict[str, Any] = _plain(attrs.evolve(configuration, stage=configuration.stages))
    return plain


def _plain(value: object) -> Any:
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if not attrs.has(type(value)):
        return redacted(value) if isinstance(value, str) else value
    plain: dict[str, Any] = {}
    for key, kind in keys_of(type(value)).items():
        inner = getattr(value, key)
        if kind is kinds.HASHES:
            plain[key] = [digest[:HASH_DIGITS_SHOWN] + "..." for digest in inner]
        else:
            plain[key] = "***" if kind.is_secret and inner is not None else _plain(inner)
    return plain


def common(configuration: Configuration) -> dict[str, Any]:
    """What all stages of a system must have in common, as plain data, with the lines where it is written."""
    security = configuration.security.values
    plain: dict[str, Any] = {
        "topics": configuration.topics,
        "stage": [{"name": stage.name, "topics": list(stage.topics)} for stage in configuration.stages],
        "topic": [
            {
                "pattern": topic.pattern,
                "delivery": topic.delivery,
                "retention": None if topic.retention is None else list(attrs.astuple(topic.retention.policy)),
            }
            for topic in configuration.topic
        ],
        "group": [{"topics": list(group.topics)} for group in configuration.group],
        "times": {key: kinds.age_s(getattr(configuration.times, key)) for key in keys_of(TimesSection)},
        "security": {
            "tags": security.tags,
            "rotate_every": security.rotate_every_s,
            "old_keys_valid_s": security.old_keys_valid_s,
        },
    }
    found = ((path, line_of(configuration.lines, path)) for path, _ in _leaves(plain))
    return plain | {LINES: {spell(path): line for path, line in found if line is not None}}


def differences(ours: Mapping[str, Any], theirs: object) -> str:
    """In what two stages differ, of which each has sent the other its `common`; empty if in nothing."""
    if not isinstance(theirs, Mapping):
        return f"what the other stage sent is no configuration: {shown(theirs)}"
    here, there = dict(_leaves(ours)), dict(_leaves(theirs))
    found = [
        f"{spell(path)} is {_say(path, here, ours)} here and {_say(path, there, theirs)} there"
        for path in {**here, **there}
        if (path in here) != (path in there) or here[path] != there[path]
    ]
    more = f"; and {len(found) - DIFFERENCES_SHOWN_MAX} more" if len(found) > DIFFERENCES_SHOWN_MAX else ""
    return "; ".join(found[:DIFFERENCES_SHOWN_MAX]) + more


def _leaves(plain: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Each way to a value; what is neither a table nor a list of tables is a value."""
    for key, value in plain.items():
        if key == LINES:
            continue
        if isinstance(value, Mapping):
            for inner, leaf in value.items():
                yield (str(key), str(inner)), list(leaf) if isinstance(leaf, tuple) else leaf
            continue
        if not (isinstance(value, (list, tuple)) and all(isinstance(entry, Mapping) for entry in value)):
            yield (str(key),), value
            continue
        for index, entry in enumerate(value):
            for inner, leaf in entry.items():
                yield (str(key), index, str(inner)), list(leaf) if isinstance(leaf, tuple) else leaf


def _say(path: Path, leaves: dict[Path, Any], plain: Mapping[str, Any]) -> str:
    if path not in leaves:
        return NOTHING
    lines = plain.get(LINES)
    line = lines.get(spell(path)) if isinstance(lines, Mapping) else None
    return shown(leaves[path]) + (f" (line {line})" if isinstance(line, int) and 0 < line < LINES_MOST else "")
