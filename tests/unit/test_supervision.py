"""Whoever must live is looked after: what is safe goes on, what is not makes its owner fail, and nothing is forgotten."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ordered_pubsub
import ordered_pubsub_adapters
from helpers.clients import until
from ordered_pubsub.errors import JournalError
from ordered_pubsub.supervision import Backoff, Supervisor, Unexpected

ROOTS = (Path(ordered_pubsub.__file__).parent, Path(ordered_pubsub_adapters.__file__).parent)
STARTS = {"call_later", "call_at", "call_soon", "call_soon_threadsafe", "create_task", "ensure_future", "Thread"}
NOT_OURS = ("testing", "bench", "cli")
"""They end with the command or the test that they belong to."""
LOOKED_AFTER = {
    "ordered_pubsub/supervision.py": "the supervisor itself",
    "ordered_pubsub/server/links/agreement.py": "a limit for one connection, which it aborts",
    "ordered_pubsub/server/doors/admission.py": "a limit for one connection, which it aborts",
    "ordered_pubsub/server/links/peers.py": "a limit for one connection, which it aborts",
    "ordered_pubsub/wire/channel.py": "a limit for one connection, which it aborts",
    "ordered_pubsub/wire/tasks.py": "awaited in the function that made it",
    "ordered_pubsub/server/serving.py": "waits for an event, in the function that made it",
    "ordered_pubsub/server/stage/node.py": "the end of a wait in the function that made it: sets an event",
    "ordered_pubsub/client/outgoing/publisher.py": "the end of a wait in the function that made it: sets an event",
    "ordered_pubsub/client/incoming/intake.py": "the end of a wait in the function that made it: sets an event",
    "ordered_pubsub/client/incoming/reception.py": "a warning in the log, and nothing else",
    "ordered_pubsub/client/subscription.py": "a handler's task, which ends its subscription by whatever it meets",
    "ordered_pubsub/client/waiting.py": "a word to who waits in the loop, from another thread; it raises nothing",
    "ordered_pubsub/client/client.py": "closing, whose outcome is awaited by whoever closes",
    "ordered_pubsub/sync/handlers.py": "a handler's thread, which hands on whatever the handler raises",
    "ordered_pubsub/sync/loops.py": "the thread of the loop, and what it is asked for, which is awaited or told",
    "ordered_pubsub_adapters/_nats_fast.py": "a write, which raises nothing",
    "ordered_pubsub_adapters/_rabbitmq_io.py": "what pika asks for, and is told of; and a write, which raises nothing",
    "ordered_pubsub_adapters/base.py": "awaited in the function that made it; sending, whose errors are told to who publishes",
    "ordered_pubsub_adapters/memory.py": "the end of a wait in the function that made it: sets an event",
    "ordered_pubsub_adapters/nats.py": "a question whose answer is awaited, and that ends with the connection",
}
"""Where something is begun without a supervisor, how often, and why that may be."""
HOW_OFTEN = {
    "ordered_pubsub/supervision.py": 5,
    "ordered_pubsub/sync/loops.py": 2,
    "ordered_pubsub_adapters/_rabbitmq_io.py": 4,
    "ordered_pubsub_adapters/base.py": 2,
}
"""Once, where nothing is said."""


class Owner:
    """What fails."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.supervisor = Supervisor("the owner", self.errors.append)


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.supervisor.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits."""
    monkeypatch.setattr("ordered_pubsub.supervision.random.uniform", lambda least, most: 0.0)


def failing(times: int, error: BaseException) -> Callable[[], None]:
    """Raises so often, then goes well."""
    left = [error] * times

    def step() -> None:
        if left:
            raise left.pop()

    return step


# -- going on is safe -------------------------------------------------------------------------------------------------


async def test_work_that_must_live_is_begun_again_after_an_error(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    step, done = failing(3, KeyError("planted")), asyncio.Event()

    async def work() -> None:
        step()
        done.set()
        await asyncio.Event().wait()

    owner.supervisor.keep(work, "working")
    await until(done.is_set)

    assert (owner.supervisor.healed, owner.errors) == (3, [])
    assert "the owner: working met KeyError('planted'), and goes on" in caplog.text


async def test_an_error_that_comes_again_and_again_is_logged_once_in_a_while(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    step, done = failing(100, KeyError("planted")), asyncio.Event()

    async def work() -> None:
        step()
        done.set()

    owner.supervisor.keep(work, "working")
    await until(done.is_set)

    assert len(caplog.records) == 1


async def test_a_task_is_not_ended_by_the_cancellation_of_what_it_waits_for(owner: Owner) -> None:
    if not hasattr(asyncio.Task, "cancelling"):
        return  # Python 3.10 cannot tell the two apart
    awaited: list[asyncio.Future[None]] = []

    async def work() -> None:
        awaited.append(asyncio.get_running_loop().create_future())
        await awaited[-1]

    owner.supervisor.keep(work, "working")
    await until(lambda: awaited)
    awaited[0].cancel()
    await until(lambda: len(awaited) == 2)


async def test_a_task_that_is_cancelled_ends(owner: Owner) -> None:
    task = owner.supervisor.keep(asyncio.Event().wait, "working")  # type: ignore[arg-type]  # it never returns
    await asyncio.sleep(0)
    owner.supervisor.cancel()
    await asyncio.wait((task,))

    assert task.cancelled()
    assert owner.errors == []


async def test_what_is_done_now_and_then_goes_on_after_an_error(owner: Owner) -> None:
    done: list[int] = []
    step = failing(2, KeyError("planted"))

    def count() -> None:
        done.append(1)
        step()

    repeated = owner.supervisor.every(0.0, count, "counting")
    await until(lambda: len(done) > 3)
    repeated.cancel()

    assert (owner.supervisor.healed, owner.errors) == (2, [])


# -- going on is not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["soon", "later", "at", "must"])
async def test_an_owner_fails_at_once_by_what_nobody_has_thought_of(owner: Owner, how: str) -> None:
    def step() -> None:
        raise KeyError("planted")

    async def work() -> None:
        step()

    supervisor, loop = owner.supervisor, asyncio.get_running_loop()
    if how == "soon":
        supervisor.soon(step, "working")
    elif how == "later":
        supervisor.later(0.0, step, "working")
    elif how == "at":
        supervisor.at(loop.time(), step, "working")
    else:
        supervisor.must(work(), "working")
    await until(lambda: owner.errors)

    (error,) = owner.errors
    assert isinstance(error, Unexpected)
    assert isinstance(error.__cause__, KeyError)
    assert "the owner has stopped, since it met what it cannot handle (working: KeyError: 'planted')" in str(error)


async def test_an_error_of_ours_is_handed_on_as_it_is(owner: Owner) -> None:
    error = JournalError("the disk is full")
    owner.supervisor.soon(failing(1, error), "working")
    await until(lambda: owner.errors)

    assert owner.errors == [error]


async def test_what_is_done_beside_does_not_make_its_owner_fail(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise KeyError("planted")

    task = owner.supervisor.beside(work(), "tidying")
    await asyncio.wait((task,))

    assert owner.errors == []
    assert "the owner: tidying failed" in caplog.text


async def test_work_that_is_cancelled_before_it_has_begun_leaves_nothing(owner: Owner) -> None:
    """Python would complain of a coroutine that was never awaited, and that is an error among tests."""

    async def work() -> None:
        raise AssertionError

    task = owner.supervisor.must(work(), "working")
    task.cancel()
    await asyncio.wait((task,))

    assert owner.errors == []


# -- pauses -----------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_a_limit_and_begin_again() -> None:
    backoff, limits = Backoff(1.0, 5.0), []
    for _ in range(5):
        limits.append(backoff.limit_s)
        backoff.next_s()
    backoff.reset()

    assert limits == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.limit_s == 1.0


# -- nobody is forgotten ----------------------------------------------------------------------------------------------


def beginnings() -> dict[str, int]:
    """Where tasks, timers and threads are begun, and how often, but for those that a supervisor begins."""
    found: dict[str, int] = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            name = str(path.relative_to(root.parent))
            if name.split("/")[1] in NOT_OURS:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    found[name] = found.get(name, 0) + (called in STARTS)
    return {name: count for name, count in found.items() if count}


def test_every_task_and_timer_has_a_supervisor_or_a_reason() -> None:
    found = beginnings()
    expected = {name: HOW_OFTEN.get(name, 1) for name in LOOKED_AFTER}

    assert found == expected, "begin it with a Supervisor, or say here why it can do without"
