"""A stage on an older copy of its store cannot know that by itself, and what clients say is no proof: so it says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ordered_pubsub.core.messages import Progress
from ordered_pubsub.core.stage._behind import TOPICS_MAX
from ordered_pubsub.server.monitoring import metrics
from ordered_pubsub.wire.protocol import Ping, Pong, Welcome
from ordered_pubsub.wire.sessions import make_session
from server.messages import greeting
from server.systems import System, one_stage, raw, serving
from server.waiting import soon, until


def copy(source: Path, target: Path) -> None:
    """Put the files of a store, with its mark, in the place of others."""
    target.mkdir(exist_ok=True)
    for old in target.glob("s0.db*"):
        old.unlink()
    for file in source.glob("s0.db*"):
        shutil.copy(file, target)


async def test_a_stage_on_an_older_copy_of_store_and_mark_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with System(tmp_path, [["**"]]) as system, system.connect() as client:
        subscription = await client.subscribe("a")
        for count, stays in ((3, True), (2, False)):
            async with system.connect() as market:
                await market.publish_many("a", range(count))
            for _ in range(count):
                await soon(subscription.__anext__())
            await system.stop(0)
            copy(*((tmp_path, tmp_path / "older") if stays else (tmp_path / "older", tmp_path)))
            await system.start(0)
        server = system.servers[0]
        await until(lambda: server.node.status()["behind"] == 1)

        assert server.node.status()["ready"] is True
        await until(lambda: "a client says that it has topic 'a' up to number 5, and 3 is the last" in caplog.text)
        assert 'ordered_pubsub_topics_behind{stage="s0"} 1\n' in metrics(server.status())


async def test_whoever_lies_makes_a_stage_remember_a_bounded_number_of_topics(caplog: pytest.LogCaptureFixture) -> None:
    """And write one line."""
    async with serving(one_stage()) as server, raw(server.port) as line:
        key = make_session(None)
        line.send(greeting(key, None))
        await line.expect(Welcome)
        for number in range(3):
            topics = {f"{number}/{at}": 7 for at in range(TOPICS_MAX // 2)}
            line.send(Progress(f"{key.session}/{number}", topics, True, 1), Ping())
            await line.find(Pong)
        await until(lambda: server.node.status()["behind"] == TOPICS_MAX)
        await until(lambda: "a client says that it has topic" in caplog.text)
        line.send(Ping())
        await line.find(Pong)

        assert server.node.status()["ready"] is True
        assert caplog.text.count("a client says that it has topic") == 1
