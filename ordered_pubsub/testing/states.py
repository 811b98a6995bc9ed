"""`python -m ordered_pubsub.testing.states`: draw docs/states.md from the tables of the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ordered_pubsub.core.client.machine import CONNECTIONS
from ordered_pubsub.core.client.session import REQUESTS
from ordered_pubsub.core.client.subscription import CHANGES, SUBSCRIPTIONS
from ordered_pubsub.core.client.writer import WRITERS
from ordered_pubsub.core.order.registered import REGISTERED
from ordered_pubsub.core.states import States

TABLES = {
    "core/client/machine.py": CONNECTIONS,
    "core/client/session.py": REQUESTS,
    "core/client/subscription.py": SUBSCRIPTIONS,
    "core/client/subscription.py, its changes": CHANGES,
    "core/client/writer.py": WRITERS,
    "core/order/registrar.py": REGISTERED,
}
HEAD = """# States

Drawn from the tables in the code by `make states`; a test compares. A client, its subscriptions and their changes, and writers go
by their tables themselves. Requests and what is registered have their states by where they are kept: the simulation looks at them
after every input, and sees that nothing else happens.
"""


def draw(states: States) -> Iterator[str]:
    """A diagram, in Mermaid's language, and the table in words."""
    names = {state: f"s{place}" for place, state in enumerate(states.table)}
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state, name in names.items():
        yield f"    {name}: {state}"
    yield f"    [*] --> {next(iter(names.values()))}"
    for state, following in states.table.items():
        yield from (f"    {names[state]} --> {names[after]}" for after in following)
        if not following:
            yield f"    {names[state]} --> [*]"
    yield "```"
    yield ""
    yield "| it is | and becomes | when |"
    yield "| --- | --- | --- |"
    for state, following in states.table.items():
        yield from (f"| {state} | {after} | {when} |" for after, when in following.items())
        if not following:
            yield f"| {state} | | |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for where, states in TABLES.items():
        module, _, of = where.partition(", ")
        lines += [
            f"## {states.of[0].upper()}{states.of[1:]}",
            "",
            f"`{module}`{', ' + of if of else ''}.",
            "",
            *draw(states),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
