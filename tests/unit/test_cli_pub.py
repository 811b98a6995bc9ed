"""`ordered-pubsub pub`: what becomes an event, and what is said of those that were not published."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ordered_pubsub
from ordered_pubsub import errors
from ordered_pubsub.cli import main
from ordered_pubsub.cli.lines import CHUNK_BYTES, CHUNKS_MAX, LineSplitter, TextLine, read_lines
from ordered_pubsub.cli.pub import FAILURES_SHOWN_MAX, PublishCommand, read_data

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_found_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder without a configuration, and no environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ORDERED_PUBSUB_"):
            monkeypatch.delenv(name)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a pipe; this is its other end."""
    read_end, write_end = os.pipe()
    with open(read_end) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield write_end


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("7", 7), ("-0.5", -0.5), ('{"a": [1, null]}', {"a": [1, None]}), ('"text"', "text"), ("true", True), (" 1 ", 1),
        ("text", "text"), ("", ""), ("{", "{"), ("héllo ☃", "héllo ☃"), ("NaN", "NaN"), ("-Infinity", "-Infinity"),
        ("1e999", "1e999"), ("[1e999]", "[1e999]"), ("1" * 5_000, "1" * 5_000), ("[" * 100_000, "[" * 100_000),
    ],
)  # fmt: skip
def test_data_is_json_if_it_parses_else_text(text: str, data: Any) -> None:
    """What only Python takes for JSON is text."""
    assert read_data(text.encode()) == data


def test_what_is_not_utf_8_is_neither() -> None:
    """The message says what to do."""
    with pytest.raises(errors.UsageError, match="--raw"):
        read_data(b"\xff")


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_they_come(size: int) -> None:
    """However the input is cut into chunks; the last line needs no end."""
    data = b"one\ntwo\r\n\n\nfour \xff\nend"
    splitter = LineSplitter(1_000)
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    lines += splitter.end()

    assert [line.data for line in lines] == [b"one", b"two", b"", b"", b"four \xff", b"end"]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line.is_whole for line in lines)


def test_a_line_that_is_too_long_is_not_kept() -> None:
    """Its size is known, and the next line is read as ever."""
    splitter = LineSplitter(10)
    lines = [line for _ in range(1_000) for line in splitter.feed(b"x" * 1_000)]
    assert lines == []
    assert len(splitter._kept) == 10
    long, short = splitter.feed(b"\nshort\n")

    assert (long.size, long.data, long.is_whole) == (1_000_000, b"x" * 10, False)
    assert (short.number, short.data, short.is_whole) == (2, b"short", True)


def test_an_input_without_lines_has_none() -> None:
    """Not an empty one."""
    splitter = LineSplitter(10)
    assert [*splitter.feed(b""), *splitter.end()] == []
    assert [*splitter.feed(b"x\n"), *splitter.end()] == [TextLine(1, b"x", 1)]


async def test_lines_come_when_they_are_written(pipe: int) -> None:
    """Not only when the input ends."""
    lines = read_lines(100)
    for text in ("one", "two"):
        os.write(pipe, f"{text}\n".encode())
        (line,) = await asyncio.wait_for(anext(lines), PATIENCE_S)
        assert line.data == text.encode()
    os.close(pipe)
    assert await asyncio.wait_for(anext(lines), PATIENCE_S) == []
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


async def test_an_input_that_is_not_needed_yet_is_left_where_it_is(pipe: int) -> None:
    """What writes to the pipe waits."""
    os.set_blocking(pipe, False)
    lines = read_lines(100)
    os.write(pipe, b"\n")
    await asyncio.wait_for(anext(lines), PATIENCE_S)
    written, quiet = 0, 0
    while quiet < 20:  # until it takes no more, though the reader had its turns
        try:
            written += os.write(pipe, b"\n" * CHUNK_BYTES)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            await asyncio.sleep(0.005)
    assert written <= (CHUNKS_MAX + 4) * CHUNK_BYTES
    os.close(pipe)
    assert sum([len(some) async for some in lines]) == written


async def test_an_input_that_cannot_be_read_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder, for one; or none at all."""
    descriptor = os.open(tmp_path, os.O_RDONLY)

    class Stdin:
        closed = False

        def fileno(self) -> int:
            return descriptor

    monkeypatch.setattr(sys, "stdin", Stdin())
    with pytest.raises(errors.UsageError, match="cannot be read: Is a directory"):
        await anext(read_lines(100))
    os.close(descriptor)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(errors.UsageError, match="standard input is closed"):
        await anext(read_lines(100))


# -- publishing -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def client() -> AsyncIterator[ordered_pubsub.Client]:
    async with ordered_pubsub.connect("memory://pub", pipeline_events_max=3, payload_bytes_max=20) as client:
        yield client


async def lines_of(*data: bytes) -> AsyncIterator[list[TextLine]]:
    for number, one in enumerate(data, 1):
        yield [TextLine(number, one, len(one))]


async def test_receipts_are_printed_in_the_order_of_the_events(
    client: ordered_pubsub.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if there are more than the pipeline takes at once."""
    subscription = await client.subscribe("t")
    publishing = PublishCommand(client, "t", {"k": "v"}, PATIENCE_S, is_quiet=False)
    await publishing.run(lines_of(*[str(number).encode() for number in range(20)]), is_raw=False)
    await publishing.conclude()

    events = [await anext(subscription) for _ in range(20)]
    assert [event.data for event in events] == list(range(20))
    assert events[0].headers == {"k": "v"}
    assert capsys.readouterr().out.splitlines() == [f"t {event.number} {event.id}" for event in events]
    assert (publishing.published, publishing.failed) == (20, 0)


async def test_raw_data_stays_bytes(client: ordered_pubsub.Client) -> None:
    """Whether it is JSON or not."""
    subscription = await client.subscribe("t")
    publishing = PublishCommand(client, "t", {}, PATIENCE_S, is_quiet=True)
    await publishing.run(lines_of(b"7", b"\xff"), is_raw=True)

    assert [(await anext(subscription)).data for _ in range(2)] == [b"7", b"\xff"]


async def test_a_line_that_is_no_event_is_skipped_and_said(
    client: ordered_pubsub.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are published."""
    publishing = PublishCommand(client, "t", {}, PATIENCE_S, is_quiet=False, word="line")
    await publishing.run(lines_of(b"1", b"x" * 30, b"\xff", b"4"), is_raw=False)
    await publishing.conclude()

    captured = capsys.readouterr()
    assert [line.split()[:2] for line in captured.out.splitlines()] == [["t", "1"], ["t", "2"]]
    said = captured.err.splitlines()
    assert said[0].startswith("ordered-pubsub pub: line 2: an event for 't' has 32 bytes; at most 20")
    assert said[1].startswith("ordered-pubsub pub: line 3: it is not UTF-8")
    assert publishing.summary().startswith("ordered-pubsub pub: 2 events published on 't' in ")
    assert publishing.summary().endswith("; 2 not published")


async def test_not_every_failure_is_said(client: ordered_pubsub.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """But every one is counted."""
    publishing = PublishCommand(client, "t", {}, PATIENCE_S, is_quiet=False)
    await publishing.run(lines_of(*[b"\xff"] * 100), is_raw=False)

    assert len(capsys.readouterr().err.splitlines()) == FAILURES_SHOWN_MAX
    assert publishing.failed == 100


class Slow:
    """An output that takes its time: until the last line was read."""

    def __init__(self) -> None:
        self.begins, self.ends = asyncio.Event(), asyncio.Event()

    async def write(self, text: str) -> None:
        if text:
            self.begins.set()
            await self.ends.wait()


async def test_an_input_that_ends_while_receipts_are_printed_ends_the_command(client: ordered_pubsub.Client) -> None:
    """Also if nothing of what came last was published."""
    output, ended = Slow(), asyncio.Event()
    publishing = PublishCommand(client, "t", {}, PATIENCE_S, is_quiet=False, output=output)  # type: ignore[arg-type]

    async def lines() -> AsyncIterator[list[TextLine]]:
        yield [TextLine(1, b"1", 1)]
        await output.begins.wait()
        yield [TextLine(2, b"\xff", 1)]
        ended.set()

    running = asyncio.ensure_future(publishing.run(lines(), is_raw=False))
    await output.begins.wait()
    await ended.wait()
    output.ends.set()
    await asyncio.wait_for(running, PATIENCE_S)
    assert (publishing.published, publishing.failed) == (1, 1)


async def endless_lines() -> AsyncIterator[list[TextLine]]:
    number = 0
    while True:
        number += 1
        yield [TextLine(number, b"1", 1)]


class Refusing:
    """A client whose stage refuses everything from the third event on, or never answers."""

    def __init__(self, answers: bool) -> None:
        self.answers = answers
        self.count = 0

    def publish_nowait(self, topic: str, data: Any, headers: object) -> asyncio.Future[ordered_pubsub.Receipt]:
        self.count += 1
        if self.count > 100:
            raise errors.WouldBlock("it is full")
        future: asyncio.Future[ordered_pubsub.Receipt] = asyncio.get_running_loop().create_future()
        if self.count < 3:
            future.set_result(ordered_pubsub.Receipt(topic, self.count, str(self.count)))
        elif self.answers:
            asyncio.get_running_loop().call_soon(future.set_exception, errors.AccessDenied("you may not"))
        return future

    def status(self) -> dict[str, Any]:
        return {"waiting_for": "the stage"}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [(True, "you may not"), (False, "no outcome within 0.05 s (timeout_s): waited for the stage")],
)
async def test_nothing_more_is_read_after_a_refusal(
    answers: bool, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input without an end ends there, and everything that was under way is accounted for."""
    client: Any = Refusing(answers)
    publishing = PublishCommand(client, "t", {}, PATIENCE_S if answers else 0.05, is_quiet=False)
    await asyncio.wait_for(publishing.run(endless_lines(), is_raw=False), PATIENCE_S)
    await publishing.conclude()

    captured = capsys.readouterr()
    assert captured.out == "t 1 1\nt 2 2\n"
    assert reason in captured.err.splitlines()[0]
    assert publishing.published == 2
    left = min(client.count, 100) - 2
    assert (publishing.failed, publishing.unknown) == ((left, 0) if answers else (0, left))
    assert not publishing.is_good
    said = f"; {left} not published" if answers else f"; {left} perhaps"
    assert publishing.summary().endswith(f"{said}; what came after that was not published")


# -- the command ------------------------------------------------------------------------------------------------------


def test_each_argument_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    """Over memory:// nobody else sees them, which is said."""
    assert main(["pub", "t", "1", "two", "--ens", "memory://x", "--header", "a=b=c"]) == 0

    captured = capsys.readouterr()
    assert [line.split()[:2] for line in captured.out.splitlines()] == [["t", "1"], ["t", "2"]]
    assert captured.err.startswith("note: memory://x lives in this process alone")


def test_lines_of_standard_input_are_events(capsys: pytest.CaptureFixture[str], pipe: int) -> None:
    """With a summary at the end."""
    os.write(pipe, b"1\n\n3")
    os.close(pipe)
    assert main(["pub", "t", "-", "--ens", "memory://x"]) == 0

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "\nordered-pubsub pub: 3 events published on 't' in " in captured.err
    assert "\r" not in captured.err


def test_quiet_prints_nothing_but_failures(capsys: pytest.CaptureFixture[str], pipe: int) -> None:
    """Neither receipts nor the summary, unless something was not published."""
    os.write(pipe, b"1\n")
    os.close(pipe)
    assert main(["pub", "t", "-", "--quiet", "--ens", "memory://x"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err.splitlines()[1:]) == ("", [])

    assert main(["pub", "t", json.dumps("x" * (1 << 20)), "2", "--quiet", "--ens", "memory://x"]) == 1
    assert "; 1 not published" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["t"], "arguments are required: DATA"),
        (["t", "1"], "no broker is named: give --ens"),
        (["t", "1", "--header", "x"], "'x' does not fit; expected NAME=VALUE"),
        (["t", "1", "--header", "=x"], "expected NAME=VALUE"),
        (["t", "1", "--header", "content-type=x"], "header 'content-type' is one that this library sets itself"),
        (["t", "1", "--call-timeout", "0"], "'0' does not fit; expected a number of seconds above 0"),
        (["t", "1", "--call-timeout", "inf"], "expected a number of seconds above 0"),
        (["t//", "1"], "topic 't//' has an empty level"),
        (["t", "1", "--ens", "x"], "client.ens='x' does not fit"),
        (["t", "1", "--ens", "gopher://x"], "no adapter for gopher://"),
        (["t", "1", "--ens", "mqtt://x"], "needs a stage"),
        (["t", "1", "--ens", "memory://x?reorder=2"], "reorder='2' does not fit"),
        (["t", "1", "--ens", "mqtt://x", "--sequencer", "http://y"], "http:// is not a stage's scheme"),
        (["t", "1", "--ens", "mqtt://x", "--sequencer", "ops://y,"], "client.sequencer[1]='' does not fit"),
        (
            ["t", "1", "--ens", "memory://x", "--token-file", "nothere", "--sequencer", "ops://y"],
            "'nothere' cannot be used",
        ),
        (["t", "1", "--ens", "memory://x", "--name", " x"], "client.name=' x' does not fit"),
        (["t", "1", "--ens", "memory://x", "--config", "nothere.toml"], "'nothere.toml' cannot be read"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is published."""
    assert main(["pub", *arguments]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("command", ["pub", "sub", "status", "demo"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And what the exit codes mean."""
    assert main([command, "--help"]) == 0

    out = capsys.readouterr().out
    assert f"\n  ordered-pubsub {command}" in out
    assert "exit code: 0 if " in out
