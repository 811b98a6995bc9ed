"""What one stage has for another travels a window at a time, and all of it arrives."""

from __future__ import annotations

import pytest

from ordered_pubsub.core.messages import Done, Hello, LinkAck, LinkFrame, Operation, Publication
from ordered_pubsub.core.stage import _links as links
from ordered_pubsub.core.stage import _peers as peers
from ordered_pubsub.core.stage._links import Link
from ordered_pubsub.core.stage.stage import Stage
from ordered_pubsub.core.topology import StageSpec, Topology

TWO = Topology((StageSpec("high", ("h",)), StageSpec("low", ("l",))))


def done(entries: int = 0) -> Done:
    part = Publication("h", 1, 0.0, 1, entries={f"t{number}": 1 for number in range(entries)})
    return Done(Operation("c", 1, 1, 0, 0, 0, 0, [part]))


def filled(*entries: int) -> Link:
    link = Link()
    for count in entries:
        link.number(done(count))
    return link


def numbers(frames: list[LinkFrame]) -> list[int]:
    return [frame.number for frame in frames]


def test_a_window_is_what_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FRAMES_UNDER_WAY_MAX", 3)
    link = filled(*[0] * 8)
    assert numbers(link.window(0)) == [1, 2, 3]
    assert numbers(link.window(3)) == []
    link.acknowledged(2)
    assert numbers(link.window(3)) == [4, 5]


def test_large_frames_are_fewer_but_one_always_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOAD_MAX", 10)
    link = filled(4, 4, 4, 40, 0)
    assert numbers(link.window(0)) == [1, 2]
    link.acknowledged(1)
    assert numbers(link.window(2)) == [3]
    link.acknowledged(3)
    assert numbers(link.window(3)) == [4]


def test_a_link_that_comes_back_sends_everything_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (links, peers):
        monkeypatch.setattr(module, "FRAMES_UNDER_WAY_MAX", 3)
    low = Stage.restore(1, TWO, None, [])
    low.peers.unconfirmed.clear()
    for _ in range(8):
        low.peers.send(0, done())
    low.take_effects()
    low.connected(0)
    low.handle_peer(0, Hello(TWO.fingerprint, 0), 0.0)
    came: list[int] = []
    while True:
        frames = [message for _, message in low.take_effects().sends if isinstance(message, LinkFrame)]
        if not frames:
            break
        assert len(frames) <= 3
        came += numbers(frames)
        if len(came) == 3:
            low.peers.send(0, done())  # does not overtake
        low.handle_peer(0, LinkAck(came[-1]), 0.0)
    assert came == list(range(1, 10))
    assert low.state.links[0].outbox == {}


def test_while_nothing_is_missing_a_frame_goes_at_once() -> None:
    low = Stage.restore(1, TWO, None, [])
    low.peers.unconfirmed.clear()
    low.connected(0)
    low.handle_peer(0, Hello(TWO.fingerprint, 0), 0.0)
    low.take_effects()
    for number in (1, 2):
        low.peers.send(0, done())
        assert [m.number for _, m in low.take_effects().sends if isinstance(m, LinkFrame)] == [number]
