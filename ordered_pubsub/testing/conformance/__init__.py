"""What every adapter has to show before a client can rely on it: one suite, for ours and for anybody's.

    SUBJECT = Subject(make=lambda: HubAdapter(hub.url), capabilities=HUB, kill=hub.kill, start=hub.start)

    @pytest.mark.parametrize("name", applicable(SUBJECT))
    async def test_conformance(name: str) -> None:
        await run_check(name, SUBJECT)

Each check is one claim, and quotes the sentence of the interface (`ordered_pubsub/adapter.py`) that makes it; the error of
a check that fails shows both. pytest is not needed: `run_check` is a coroutine that returns or raises. Checks of what an
ENS does not claim do not apply to it. docs/write-an-adapter.md has a whole adapter that passes.
"""

from importlib import import_module

from ordered_pubsub.testing.conformance.subject import (
    CHECKS,
    Check,
    ConformanceError,
    Subject,
    applicable,
    run_check,
)

__all__ = ["CHECKS", "Check", "ConformanceError", "Subject", "applicable", "run_check"]

ROOMS = ("content", "delivery", "pressure", "life", "line", "moments", "crash")
"""The modules that hold the checks; they come into CHECKS by being imported."""

for _room in ROOMS:
    import_module(f"{__name__}.{_room}")
