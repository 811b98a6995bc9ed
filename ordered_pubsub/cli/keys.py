"""`ordered-pubsub keys rotate`: the keys by which a system's stages tag events are changed.

Any stage may be asked; the highest one decides, and tells the others.
"""

from __future__ import annotations

import argparse
import asyncio

from ordered_pubsub.cli.clients import add_client_options, client_section, run, stages_to_ask
from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.connecting import stage_home
from ordered_pubsub.errors import Timeout
from ordered_pubsub.wire.sessions import make_session

ASK_S = 10.0
LOOK_S = 0.1

DESCRIPTION = "Changes keys. If the stages ask for a token, it needs the right 'administer'."
EPILOG = """\
examples:
  ordered-pubsub keys rotate
  ordered-pubsub keys rotate --sequencer ops://stage-1:7411 --token-file operator.token

What was tagged before is good for as long as [security] old_keys_valid_s says. Clients have the next keys already.

exit code: 0 if the stage that was asked uses new keys, 1 if that took too long, 2 if the call does not fit
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("action", choices=["rotate"], help="let another epoch of keys begin")
    add_client_options(parser, has_ens=False)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Ask, wait until it has happened, and say so."""
    client = client_section(arguments)
    return run(lambda: _rotate(client, stages_to_ask(arguments, client), arguments.call_timeout or ASK_S), "keys")


async def _rotate(client: ClientSection, addresses: list[Address], timeout_s: float) -> int:
    home = stage_home(client, addresses)
    await asyncio.wait_for(home.open(make_session(None), None, NOBODY), timeout_s)
    try:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        before = await home.turn_keys(timeout_s)
        while (epoch := int((await home.inquire(timeout_s))["key_epoch"])) <= before:
            if loop.time() >= give_up_at:
                raise Timeout(
                    f"{home.where} still uses the keys of epoch {before} after {timeout_s:g} s: is it linked to the highest "
                    "stage?"
                )
            await asyncio.sleep(LOOK_S)
    finally:
        await home.close()
    print(f"the keys of epoch {epoch} are used now, instead of those of epoch {before}")
    return 0
