"""`ordered-pubsub sub`: what is printed of an event, and when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ordered_pubsub
from ordered_pubsub.cli import main, sub
from ordered_pubsub.cli.clients import note_wildcards
from ordered_pubsub.cli.output import Output
from ordered_pubsub.cli.sub import Printing, as_json, as_text
from ordered_pubsub.client.event import Event
from ordered_pubsub.client.serialization import BYTES, JSON, Decoder
from ordered_pubsub.client.subscription import Lag
from ordered_pubsub.core.subscriber.buffer import Arrival, Notification
from ordered_pubsub.core.subscriber.vector import Moment
from ordered_pubsub.wire.event_frames import Body

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_found_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder without a configuration, and no environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ORDERED_PUBSUB_"):
            monkeypatch.delenv(name)


def event(
    payload: bytes = b"1",
    content_type: str = JSON,
    headers: dict[str, bytes | str] | None = None,
    position: int | None = 7,
    publisher: str = "desk",
    out_of_order: bool = False,
    topic: str = "eu/trades",
) -> Event:
    """An event as a subscription would be notified of it."""
    body = Body(payload, content_type, headers or {}, publisher, "id-3", 1.5)
    arrival = Arrival(topic, 3, {}, body=body)
    return Event(Notification(arrival, position, Moment({topic: 3}), 0, out_of_order), Decoder(None))


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (event(b'{"a": [1, "x"]}'), '7 eu/trades 3 desk {"a":[1,"x"]}'),
        (event(b'"text \\u00fc \\u2603"'), '7 eu/trades 3 desk "text ü ☃"'),
        (event(b"\x00ab", BYTES), "7 eu/trades 3 desk b'\\x00ab'"),
        (event(position=None), "- eu/trades 3 desk 1"),
        (event(out_of_order=True, position=None, publisher=""), "! eu/trades 3 - 1"),
        (
            event(b'"line\\nbreak \\u001b[31m \\u009b \\u202e"'),
            '7 eu/trades 3 desk "line\\nbreak \\u001b[31m \\u009b \\u202e"',
        ),
        (event(topic="a\u202eb"), "7 a\\u202eb 3 desk 1"),
        (event(b"{"), "7 eu/trades 3 desk (a payload of 1 bytes is not application/json: "),
        (event(b"x", "text/unknown"), "7 eu/trades 3 desk (a payload has the content type 'text/unknown'"),
    ],
)
def test_a_line_holds_position_topic_number_publisher_and_data(one: Event, line: str) -> None:
    """In one line, whatever it is, and without a command for the terminal."""
    found = as_text(one)

    assert found.startswith(line)
    assert found.isprintable()


def test_an_object_holds_what_machines_need() -> None:
    """As JSON."""
    assert json.loads(as_json(event(b'{"x": "\\u2603"}', headers={"a": "b", "c": b"\xff"}))) == {
        "position": 7,
        "topic": "eu/trades",
        "number": 3,
        "id": "id-3",
        "publisher": "desk",
        "published_at": 1.5,
        "out_of_order": False,
        "headers": {"a": "b", "c": {"base64": "/w=="}},
        "data": {"x": "☃"},
    }


@pytest.mark.parametrize(
    ("one", "encoded"),
    [
        (event(b"\x00\xff", BYTES), "AP8="),
        (event(b"{"), "ew=="),
        (event(b"NaN"), "TmFO"),
        (event(b"x", "text/unknown"), "eA=="),
    ],
)
def test_what_is_no_json_is_given_in_base64(one: Event, encoded: str) -> None:
    """Exactly as it was published."""
    found = json.loads(as_json(one))

    assert "data" not in found
    assert found["data_base64"] == encoded


def test_an_object_is_one_line_of_ascii() -> None:
    """Whatever the encoding of the output is."""
    line = as_json(event(b'"\\ud800 \\n \xc3\xbc"', topic="ü"))

    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["data"] == "\ud800 \n ü"


# -- printing ---------------------------------------------------------------------------------------------------------


async def batches(*sizes: int) -> AsyncIterator[list[Event]]:
    for size in sizes:
        yield [event()] * size


@pytest.mark.parametrize(("count", "printed"), [(None, 7), (1, 1), (3, 3), (4, 4), (7, 7), (100, 7)])
async def test_no_more_are_printed_than_were_asked_for(
    count: int | None, printed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However they come."""
    await Printing(as_text, count).run(batches(3, 3, 1))

    assert len(capsys.readouterr().out.splitlines()) == printed


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch, encoding: str) -> Iterator[int]:
    """Standard output is a pipe; this is its other end."""
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding=encoding) as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        yield read_end
    os.close(read_end)


async def test_a_reader_that_does_not_read_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on, whoever writes waits, and everything comes in the end."""
    with piped(monkeypatch, "utf-8") as read_end:
        writing = asyncio.ensure_future(Output().write("ü" * 1_000_000))
        await asyncio.to_thread(select.select, [read_end], [], [], PATIENCE_S)
        assert not writing.done()
        data = await asyncio.to_thread(_read_exactly, read_end, 2_000_000)
        await asyncio.wait_for(writing, PATIENCE_S)

    assert data.decode() == "ü" * 1_000_000


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(descriptor, 1 << 16)
    return data


async def test_a_reader_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every other way to write."""
    with piped(monkeypatch, "utf-8") as read_end:
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            await Output().write("x")
        os.dup2(os.open(os.devnull, os.O_RDONLY), read_end)  # which is closed once more


async def test_what_the_output_cannot_encode_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """And lines that were printed before come before."""
    with piped(monkeypatch, "ascii") as read_end:
        sys.stdout.write("first\n")
        output = Output()
        await output.write("ü\n")
        await output.write("last\n")

        assert os.read(read_end, 100) == b"first\n\\xfc\nlast\n"


# -- the command ------------------------------------------------------------------------------------------------------


def test_it_ends_when_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    """That is what was asked for, unless more events were."""
    assert main(["sub", "a", "b", "--ens", "memory://x", "--timeout", "0.05"]) == 0
    assert capsys.readouterr().err.splitlines()[1:] == ["subscribed to a, b"]

    assert main(["sub", "a", "--ens", "memory://x", "--timeout", "0.05", "--count", "3", "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["ordered-pubsub sub: 0 of 3 events came within 0.05 s"]


def test_what_ends_the_subscription_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code for what could not go on."""

    async def run(self: Printing, batches: object) -> None:
        raise ordered_pubsub.BufferOverflow("its buffer is full")

    monkeypatch.setattr(Printing, "run", run)

    assert main(["sub", "a", "--ens", "memory://x"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "ordered-pubsub sub: its buffer is full"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "arguments are required: TOPIC"),
        (["a"], "no broker is named: give --ens"),
        (["a/*", "--ens", "memory://x"], "topic 'a/*' contains '*'"),
        (["a", "--count", "0"], "'0' does not fit; expected a whole number from 1 on"),
        (["a", "--count", "many"], "'many' does not fit"),
        (["a", "--timeout", "-1"], "'-1' does not fit; expected a number of seconds above 0"),
        (["a", "--order", "partial"], "invalid choice: 'partial'"),
        (["a", "--unordered", "perhaps"], "invalid choice: 'perhaps'"),
        (["a", "--ens", "memory://x"], "topic 'a' gives delivery='ordered', which is less than the 'exactly-once'"),
        (
            ["a", "--ens", "memory://x?lose=0.1", "--order", "total", "--delivery", "ordered"],
            "topic 'a' gives delivery='ordered', for which the ENS must lose nothing",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], ordered_topics: None
) -> None:
    """And nothing is subscribed to."""
    assert main(["sub", *arguments]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


# -- what people are told ---------------------------------------------------------------------------------------------


class Waiting:
    """A subscription, of which only the lag is looked at."""

    def __init__(self, *lags: Lag) -> None:
        self._lags = list(lags)
        self.over = asyncio.Event()

    @property
    def lag(self) -> Lag:
        if len(self._lags) == 1:
            self.over.set()
        return self._lags.pop(0) if len(self._lags) > 1 else self._lags[0]


async def noticed(subscription: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub, "STALLED_AFTER_S", 0.0)
    task = asyncio.ensure_future(sub.notice_stalls(subscription))  # type: ignore[arg-type]
    await asyncio.wait_for(subscription.over.wait(), PATIENCE_S)
    task.cancel()


async def test_the_event_that_all_others_wait_for_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = Lag(0, 48, "'alpha' for its number 474")
    await noticed(Waiting(stuck, stuck, Lag(0, 0, "nothing")), monkeypatch)
    assert capsys.readouterr().err == (
        "ordered-pubsub sub: 48 events wait for one that has not come: 'alpha' for its number 474\n"
    )


async def test_nothing_is_said_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lags = [Lag(0, 3, "'a' for its number 1"), Lag(0, 3, "'a' for its number 2"), Lag(2, 3, "'a' for its number 2")]
    await noticed(Waiting(*lags, Lag(0, 0, "nothing")), monkeypatch)
    assert capsys.readouterr().err == ""


def test_signs_that_brokers_take_for_more_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    note_wildcards(["eu/#", "us/+/x", "a#b"])
    assert capsys.readouterr().err == ("note: '#' and '+' stand for themselves in a topic here, and for nothing else\n")
    note_wildcards(["a#b", "eu/x"])
    assert capsys.readouterr().err == ""
