"""`ordered-pubsub config`: look at a configuration before anything runs on it, and make tokens.

`config check` reads the configuration exactly as a client or a stage does, and shows what was made of it: which file and which
variables, the stages in the order of their ranks, who may connect and do what, and where given topics belong. What it warns of
is allowed. `config token` makes a token, so that nobody has to invent a way to: the token goes into a file that only its owner
may read, and the lines for the stages, which hold its hash only, to the standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from ordered_pubsub.config import kinds
from ordered_pubsub.config.checks import stages_to_serve
from ordered_pubsub.config.dumping import dump
from ordered_pubsub.config.files import check_files, hash_token, make_token, missing_files, write_token
from ordered_pubsub.config.reading import Loaded, load
from ordered_pubsub.config.schema import RIGHTS, ClientSection, Configuration, IdentitySection, StageSection
from ordered_pubsub.core.topics import check_pattern, check_topic, matches
from ordered_pubsub.errors import ConfigurationError

DESCRIPTION = "Checks a configuration and shows what was made of it, or makes a token."
EPILOG = """\
examples:
  ordered-pubsub config check
  ordered-pubsub config check /etc/ordered_pubsub.toml --stage eu --topic eu/trades --topic news
  ordered-pubsub config token desk-1 --publish 'orders/**' --subscribe '**' >> ordered_pubsub.toml

exit code: 0 if a client or a stage would take the configuration, 2 if not
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_check(actions)
    _add_token(actions)


def _add_check(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "check",
        help="show what a configuration says, and whether it fits",
        description="Reads a configuration as a client or a stage does, and shows what was made of it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="default: ORDERED_PUBSUB_CONFIG, or ./ordered_pubsub.toml")
    add("--stage", metavar="NAME", help="check as well that this stage can be served here")
    add("--topic", action="append", default=[], metavar="NAME", help="say which stage owns this topic")
    add("--json", action="store_true", help="print one JSON object, for machines")
    parser.set_defaults(run=check_command)


def _add_token(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "token",
        help="make a token, and the lines of the configuration that let it in",
        description="Makes a token, writes it into a new file that only you may read, and prints the lines for the stages.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="what the identity is called")
    add("--output", metavar="FILE", help="where the token goes (default: NAME.token)")
    add("--publish", action="append", default=[], metavar="PATTERN", help="let it publish on these topics")
    add("--subscribe", action="append", default=[], metavar="PATTERN", help="let it subscribe to these")
    add("--stage", action="store_true", help="let it link as a stage")
    parser.set_defaults(run=token_command)


# -- check ------------------------------------------------------------------------------------------------------------


def check_command(arguments: argparse.Namespace) -> int:
    """Show the configuration; what does not fit is raised."""
    loaded = load(arguments.file)
    topics = [check_topic(name) for name in arguments.topic]
    notes = [*loaded.notes, *_notes_of_files(loaded.configuration, arguments.stage)]
    if arguments.json:
        found = {
            "file": loaded.path,
            "environment": dict(loaded.environment),
            "configuration": dump(loaded.configuration),
            "topics": {topic: _about_topic(loaded.configuration, topic) for topic in topics},
            "warnings": notes,
        }
        print(json.dumps(found))
    else:
        print("\n".join(_as_text(loaded, topics, notes)))
    return 0


def _notes_of_files(configuration: Configuration, stage: str | None) -> Iterator[str]:
    """What cannot be checked here, because it is on another machine; what is here and does not fit is raised."""
    here = [] if stage is None else [one.name for one in stages_to_serve(configuration, stage)]
    sections: tuple[ClientSection | StageSection, ...] = (configuration.client, *configuration.stages)
    for section in sections:
        missing = missing_files(section)
        if missing and section.name not in here:
            owner = f"stage {section.name!r}" if isinstance(section, StageSection) else "client"
            yield f"not on this machine, so not checked: {', '.join(missing)} of the {owner}"
        else:
            check_files(section)


def _as_text(loaded: Loaded, topics: list[str], notes: list[str]) -> Iterator[str]:
    configuration = loaded.configuration
    yield f"file: {loaded.path or 'none, so the defaults'}"
    yield from (f"environment: {name} sets {key}" for name, key in loaded.environment)
    client = configuration.client
    ens = "none, so memory://" if client.ens is None else kinds.redacted(client.ens)
    yield f"client: ens {ens}; stages {_listed(str(address) for address in client.addresses)}"
    for rank, stage in enumerate(configuration.stages):
        tls = " with TLS" if stage.tls is not None else ""
        reached = f"reached at {stage.advertised}" if stage.advertised is not None else "reached wherever it listens"
        yield f"stage {stage.name}: rank {rank}; listens at {stage.address.host_and_port}{tls}, {reached}"
        yield f"  topics {_listed(stage.topics)}; store {stage.store}, durability {stage.durability}"
        if stage.http_address is not None:
            yield f"  health and metrics at http://{stage.http_address.host_and_port}"
    is_open = configuration.topics == "open"
    yield f"topics: {configuration.topics}, so {'any topic may be used' if is_open else 'only these topics may be used'}"
    for rule in configuration.topic:
        yield f"  {rule.pattern}: delivery {rule.delivery}"
    yield from _identity_lines(configuration)
    for topic in topics:
        about = _about_topic(configuration, topic)
        if not about["is_listed"]:
            yield f"topic {topic}: refused, since no [[topic]] lists it"
            continue
        why = f"by its pattern {about['pattern']}" if about["pattern"] else "by its hash, since no pattern matches"
        yield f"topic {topic}: belongs to stage {about['stage']}, {why}"
        for right in ("publish", "subscribe"):
            yield f"  may {right}: {'everybody' if about[right] is None else _listed(about[right])}"
    yield from (f"warning: {note}" for note in notes)


def _identity_lines(configuration: Configuration) -> Iterator[str]:
    if configuration.identity is None:
        yield "identities: none, so everybody who reaches a stage may do everything"
        return
    yield f"identities: {len(configuration.identity) or 'an empty list, so nobody can connect'}"
    for identity in configuration.identity:
        proofs = ["a token", "one of two tokens", "one of several tokens"][: len(identity.token_sha256)][-1:]
        if identity.certificate is not None:
            proofs.append(f"the certificate {identity.certificate!r}")
        yield f"  {identity.name}: known by {' or '.join(proofs)}"
        yield from (f"    {line}" for line in _rights(identity))


def _rights(identity: IdentitySection) -> Iterator[str]:
    for right in RIGHTS:
        allowed, denied = getattr(identity.allow, right), getattr(identity.deny, right)
        if isinstance(allowed, bool):
            if allowed:
                yield f"may {'link as a stage' if right == 'stage' else right}" + ", but it is denied" * bool(denied)
        elif allowed and right == "stage":
            yield f"may link as stage {_listed(allowed)}" + ", but it is denied" * bool(denied)
        elif allowed:
            yield f"may {right}: {_listed(allowed)}" + (f", but not {_listed(denied)}" if denied else "")


def _listed(words: Any) -> str:
    return ", ".join(words) or "none"


def _about_topic(configuration: Configuration, topic: str) -> dict[str, Any]:
    """Where a topic belongs, and what holds for it."""
    topology = configuration.topology
    stage = configuration.stages[topology.owner(topic)]
    pattern = next((pattern for pattern in stage.topics if matches(pattern, topic)), None)
    rule = configuration.rule_of(topic)
    return {
        "stage": stage.name,
        "pattern": pattern,
        "is_listed": configuration.is_listed(topic),
        "delivery": None if rule is None else rule.delivery,
        "publish": _who_may(configuration, "publish", topic),
        "subscribe": _who_may(configuration, "subscribe", topic),
    }


def _who_may(configuration: Configuration, right: str, topic: str) -> list[str] | None:
    identities = configuration.identity
    return None if identities is None else [each.name for each in identities if each.may(right, topic)]


# -- token ------------------------------------------------------------------------------------------------------------


def token_command(arguments: argparse.Namespace) -> int:
    """Make a token; print what the stages need to know of it."""
    name, output = arguments.name, arguments.output
    if not kinds.NAME.test(name):
        raise ConfigurationError(f"NAME={name!r} does not fit; NAME is {kinds.NAME.fits}")
    if output is None and not kinds.STAGE_NAME.test(name):
        raise ConfigurationError(f"{name!r} is no good name for a file: say by --output FILE where the token goes")
    allow = {
        right: [check_pattern(pattern) for pattern in getattr(arguments, right)] for right in ("publish", "subscribe")
    }
    file, token = output or f"{name}.token", make_token()
    write_token(file, token)
    rights = [f"{right} = {_toml(patterns)}" for right, patterns in allow.items()] + ["stage = true"] * arguments.stage
    print(f"\n[[identity]]\nname = {_toml(name)}\ntoken_sha256 = {_toml(hash_token(token))}")
    print(f"allow = {{ {', '.join(rights)} }}")
    print(f"the token is in {file}, which only you can read; clients show it by token_file", file=sys.stderr)
    return 0


def _toml(value: object) -> str:
    """Texts without control characters, and lists of them, are written in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False)
