"""The blocking face in processes that are interrupted, end or fork."""

from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from helpers.clients import PATIENCE_S


def run(script: str, interrupt_when: str | None = None, again: bool = False) -> tuple[int, str, str]:
    """Run a script in a process of its own, with Ctrl-C when it says something."""
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = ""
    try:
        if interrupt_when is not None:
            assert process.stdout is not None
            while interrupt_when not in said:
                line = process.stdout.readline()
                assert line, f"it ended: {process.communicate()[1]}"
                said += line
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said + out, err


BLOCKING = """
    import threading
    from ordered_pubsub import sync
    from ordered_pubsub.core.levels import Levels
    from ordered_pubsub.embedded import EmbeddedHome
    from ordered_pubsub_adapters.memory import MemoryAdapter

    class Stuck(MemoryAdapter):
        async def publish(self, frames):
            await __import__("asyncio").Event().wait()

    EmbeddedHome.levels = Levels((("**", "ordered"),))  # what is kept need not wait for the ENS
    client = sync.connect(Stuck("memory://x"), delivery="ordered", timeout_s=3600, pipeline_events_max=1)
    subscription = client.subscribe("a")
    def say(): print("waiting", flush=True)
"""


@pytest.mark.parametrize(
    "wait",
    [
        "list(subscription)",
        "subscription.next(3600)",
        "next(subscription.batches())",
        "subscription.wait()",
        "client.publish('a', 1)",
        "client.publish_many('a', [1, 2])",
        "client.publish_nowait('a', 1).result()",
    ],
)
def test_ctrl_c_ends_whatever_waits(wait: str) -> None:
    """At once: it does not wait for its outcome."""
    script = dedent(BLOCKING) + dedent(f"""
    try:
        threading.Timer(0.05, say).start()
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        __import__("os")._exit(7)
    """)
    assert run(script, "waiting") == (7, "waiting\ninterrupted\n", "")


def test_ctrl_c_in_a_block_closes_the_client() -> None:
    """And then it is raised."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        timer = threading.Timer(0.05, lambda: print("waiting", flush=True))
        try:
            with sync.connect("memory://x") as client:
                timer.start()
                for event in client.subscribe("a"):
                    pass
        except KeyboardInterrupt:
            timer.join()
            print(client.status()["connected"], threading.active_count())
        """,
        "waiting",
    )
    assert (code, out, err) == (0, "waiting\nFalse 1\n", "")


def test_events_are_not_lost_by_ctrl_c() -> None:
    """What was asked for comes to the next one who asks."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        with sync.connect("memory://x") as client:
            subscription = client.subscribe("a")
            try:
                threading.Timer(0.05, lambda: print("waiting", flush=True)).start()
                subscription.next()
            except KeyboardInterrupt:
                pass
            client.publish_many("a", [1, 2, 3])
            print([subscription.next().data for _ in range(3)])
        """,
        "waiting",
    )
    assert (code, out, err) == (0, "waiting\n[1, 2, 3]\n", "")


def test_an_interpreter_ends_though_a_client_is_open() -> None:
    """Also with threads that wait; what was published gets its receipt before."""
    code, out, err = run(
        """
        import threading
        from ordered_pubsub import sync
        from ordered_pubsub.sync import loops
        loops.EXIT_S = 30.0
        client = sync.connect("memory://x")
        subscription = client.subscribe("a")
        threading.Thread(target=list, args=(client.subscribe("b"),), daemon=True).start()
        is_handling = threading.Event()
        client.subscribe("a", notify=lambda event: is_handling.set() or threading.Event().wait())
        client.publish("a", 0)
        is_handling.wait()
        for number in range(1000):
            future = client.publish_nowait("a", number)
        future.add_done_callback(lambda future: print("receipt", future.result().number, flush=True))
        """
    )
    assert (code, out, err) == (0, "receipt 1001\n", "")


def test_an_interpreter_does_not_wait_for_an_ens_that_is_stuck() -> None:
    """It says what it left."""
    script = dedent(BLOCKING) + dedent("""
    from ordered_pubsub.sync import loops
    loops.EXIT_S = 0.1
    client.publish_nowait("a", 1)
    """)
    code, out, err = run(script)
    assert (code, out) == (0, "")
    assert "no receipt after 0.1 s was left" in err


def test_a_forked_process_is_told_to_connect_anew() -> None:
    """Instead of waiting for a thread that it does not have; the parent goes on."""
    code, out, err = run(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from ordered_pubsub import errors, sync
        with sync.connect("memory://x") as client:
            subscription = client.subscribe("a")
            client.publish_many("a", [1, 2])
            subscription.next()
            child = os.fork()
            if not child:
                for call in (
                    lambda: client.publish("a", 1), lambda: client.publish_nowait("a", 1), subscription.next,
                    lambda: next(iter(subscription)), subscription.close, client.close, client.status,
                    lambda: subscription.clock, lambda: client.subscribe("b"),
                ):
                    try:
                        call()
                    except errors.UsageError as error:
                        assert "fork" in str(error) and "connect another one" in str(error), error
                    else:
                        os._exit(1)
                with sync.connect("memory://y") as own:
                    assert own.publish("a", 1).number == 1
                sys.exit(42)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(client.publish("a", 3).number, subscription.next().data)
        """
    )
    assert (code, out, err) == (0, "42\n3 2\n", "")
