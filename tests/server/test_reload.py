"""What can be changed while a stage runs: rights, limits, tokens, certificates. And what cannot."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from ordered_pubsub.client.home.home import NOBODY
from ordered_pubsub.client.home.network import NetworkHome
from ordered_pubsub.config.addresses import Address
from ordered_pubsub.config.checks import stages_to_serve
from ordered_pubsub.config.files import hash_token, make_token, write_token
from ordered_pubsub.config.reading import load
from ordered_pubsub.core.messages import Answer, Publication, PublishAsk, Refusal, Request
from ordered_pubsub.errors import JournalError
from ordered_pubsub.server import serving as serving_module
from ordered_pubsub.server.server import Server
from ordered_pubsub.server.serving import Serving
from ordered_pubsub.server.store.store import Store
from ordered_pubsub.testing.processes import HOST, free_port
from ordered_pubsub.wire.protocol import (
    VERSION,
    Ask,
    PeerGreeting,
    Ping,
    Pong,
    Rejected,
    Tell,
    Welcome,
    from_peer,
)
from ordered_pubsub.wire.sessions import SessionKey, make_session
from server.certificates import Authority
from server.messages import greeting, with_events
from server.systems import Raw, raw
from server.waiting import soon, until

OLD, NEW = make_token(), make_token()
STAGE = f'\n[[stage]]\nname = "main"\nlisten = "{HOST}:0"\nstore = "memory"\n'


def identity(token: str, publish: str = '["**"]', name: str = "trader", more: str = "") -> str:
    hashes = ", ".join(f'"{hash_token(one)}"' for one in token.split())
    return f'[[identity]]\nname = "{name}"\ntoken_sha256 = [{hashes}]\nallow = {{ publish = {publish}{more} }}\n'


@attrs.define(eq=False)
class Run:
    """A stage that serves a file, and the file."""

    folder: Path
    serving: Serving
    stage: str
    """what the file says of the stages"""
    task: asyncio.Task[None] | None = None
    ready: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def server(self) -> Server:
        return self.serving.servers[0]

    def write(self, text: str) -> None:
        (self.folder / "ordered_pubsub.toml").write_text(text + self.stage)

    async def start(self) -> None:
        self.task = asyncio.create_task(self.serving.run(lambda _: self.ready.set()))
        waiting = asyncio.create_task(self.ready.wait())
        await soon(asyncio.wait([self.task, waiting], return_when="FIRST_COMPLETED"))
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        if self.task is not None and not self.task.done():
            self.serving._stop.set()
            await soon(self.task)


def make_run(folder: Path, text: str, stage: str = STAGE) -> Run:
    path = folder / "ordered_pubsub.toml"
    path.write_text(text + stage)
    loaded = load(str(path), {})
    serving = Serving(lambda: load(str(path), {}), loaded, stages_to_serve(loaded.configuration))
    return Run(folder, serving, stage)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    run = make_run(tmp_path, identity(OLD))
    await run.start()
    yield run
    await run.stop()


async def enter(line: Raw, key: SessionKey, token: str) -> Any:
    line.send(greeting(key, None, token=token))
    return await line.receive()


async def ask(line: Raw, key: SessionKey, topic: str, sequence: int, after: int | None = None) -> Answer | Refusal:
    before = sequence - 1 if after is None else after
    part = with_events(PublishAsk(topic), key.session)
    line.send(Ask([Request(key.session, 1, sequence, before, 0, (part,))]))
    (answer,) = (await line.expect(Tell)).answers
    return answer


# -- rights -----------------------------------------------------------------------------------------------------------


async def test_rights_are_taken_from_who_is_connected(run: Run) -> None:
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        before = await ask(line, key, "a", 1)
        run.write(identity(OLD, '["b"]'))
        run.serving.reload()
        after = await ask(line, key, "a", 2)
        other = await ask(line, key, "b", 3)

    assert [type(answer) for answer in (before, after, other)] == [Answer, Refusal, Answer]


async def test_rights_are_given_to_who_is_connected(run: Run) -> None:
    run.write(identity(OLD, '["b"]'))
    run.serving.reload()
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        before = await ask(line, key, "a", 1)
        run.write(identity(OLD))
        run.serving.reload()
        again = await ask(line, key, "a", 1)
        after = await ask(line, key, "a", 2, after=0)

    assert [type(answer) for answer in (before, after)] == [Refusal, Answer]
    assert again == before  # perhaps it was on its way twice


async def test_what_was_taken_before_its_right_was_is_still_answered(run: Run) -> None:
    """Its number has been given; if its client did not learn that, everybody would wait for the event."""
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        first = await ask(line, key, "a", 1)
        run.write(identity(OLD, "[]"))
        run.serving.reload()
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        again = await ask(line, key, "a", 1)
        following = await ask(line, key, "a", 2)

    assert again == first
    assert isinstance(following, Refusal)


async def test_who_is_nobody_any_more_is_disconnected(run: Run) -> None:
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        run.write(identity(NEW, name="other"))
        run.serving.reload()
        assert (await line.expect(Rejected)).code == "denied"
        assert await line.receive() is None


async def test_limits_hold_from_then_on(run: Run) -> None:
    run.write(identity(OLD) + "[limits]\nconnections_max = 1\npayload_bytes_max = 77\n")
    run.serving.reload()
    key = make_session(None)
    async with raw(run.server.port) as one, raw(run.server.port) as two:
        assert (await enter(one, key, OLD)).payload_bytes_max == 77
        assert (await two.expect(Rejected)).code == "limit"


# -- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_is_replaced_without_a_gap(run: Run) -> None:
    """Both are valid for a while; who still shows the old one then is not let in, and does not stay."""
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        run.write(identity(f"{OLD} {NEW}"))
        run.serving.reload()
        line.send(Ping())
        assert isinstance(await line.receive(), Pong)
        async with raw(run.server.port) as newer:
            assert isinstance(await enter(newer, make_session(None), NEW), Welcome)
            run.write(identity(NEW))
            run.serving.reload()
            assert (await line.expect(Rejected)).code == "denied"
            newer.send(Ping())
            assert isinstance(await newer.receive(), Pong)


async def test_a_client_shows_the_token_that_its_file_has_then(tmp_path: Path, run: Run) -> None:
    """A client whose token was replaced comes in again without being started again."""
    token = OLD
    home = NetworkHome([Address(HOST, run.server.port)], lambda: token)
    states: list[bool] = []
    await home.open(make_session(None), None, attrs.evolve(NOBODY, on_state=lambda up, reason: states.append(up)))
    run.write(identity(NEW))
    token = NEW
    run.serving.reload()

    await until(lambda: states == [False, True])
    await home.close()


async def test_a_stage_whose_right_to_link_was_taken_does_not_stay_linked(tmp_path: Path) -> None:
    stages = "".join(
        f'[[stage]]\nname = "{name}"\nlisten = "{HOST}:{free_port()}"\nstore = "memory"\n' for name in ("high", "low")
    )
    run = make_run(tmp_path, identity(OLD, "[]", more=", stage = true"), stages)
    run.serving.stages = run.serving.stages[:1]
    await run.start()
    async with raw(run.server.port, decoder=from_peer) as line:
        line.send(PeerGreeting(VERSION, 1, OLD, run.server._common.digest))
        assert isinstance(await line.receive(), Welcome)
        run.write(identity(OLD, "[]"))
        run.serving.reload()
        rejected = await line.find(Rejected)

    assert rejected.code == "denied"
    await run.stop()


async def test_a_stage_shows_the_token_that_its_file_has_then(tmp_path: Path) -> None:
    write_token(str(tmp_path / "stage.token"), OLD)
    run = make_run(tmp_path, "", STAGE + 'token_file = "stage.token"\n')
    await run.start()
    assert run.server._greeting().token == OLD
    (tmp_path / "stage.token").unlink()
    write_token(str(tmp_path / "stage.token"), NEW)

    run.serving.reload()

    assert run.server._greeting().token == NEW
    await run.stop()


# -- certificates -----------------------------------------------------------------------------------------------------

TLS_STAGE = STAGE + 'tls = { cert = "stage.pem", key = "stage.key", client_ca = "ca.pem" }\n'


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[Run, Authority]]:
    """A stage with TLS, and who has signed its certificate."""
    authority = Authority(tmp_path)
    authority.sign("first", file="stage")
    run = make_run(tmp_path, identity(OLD), TLS_STAGE)
    await run.start()
    yield run, authority
    await run.stop()


async def certificate_of(run: Run, authority: Authority) -> str:
    """The name in the certificate that a stage shows now."""
    async with raw(run.server.port, authority.client_context()) as line:
        shown = line.writer.get_extra_info("peercert")
        assert isinstance(await enter(line, make_session(None), OLD), Welcome)
    return str(next(value for ((key, value),) in shown["subject"] if key == "commonName"))


async def test_a_certificate_is_renewed_without_a_restart(secure: tuple[Run, Authority]) -> None:
    run, authority = secure
    key = make_session(None)
    assert await certificate_of(run, authority) == "first"
    async with raw(run.server.port, authority.client_context()) as line:
        await enter(line, key, OLD)
        authority.sign("second", file="stage")
        run.serving.reload()
        assert isinstance(await ask(line, key, "a", 1), Answer)  # who is connected stays so

    assert await certificate_of(run, authority) == "second"


async def test_a_certificate_whose_key_has_not_come_yet_changes_nothing(
    secure: tuple[Run, Authority], caplog: pytest.LogCaptureFixture
) -> None:
    run, authority = secure
    key = (run.folder / "stage.key").read_bytes()
    authority.sign("second", file="stage")
    new_key = (run.folder / "stage.key").read_bytes()
    (run.folder / "stage.key").write_bytes(key)

    run.serving.reload()

    assert "everything goes on as before: tls: cert=" in caplog.text
    assert await certificate_of(run, authority) == "first"
    (run.folder / "stage.key").write_bytes(new_key)
    run.serving.reload()
    assert await certificate_of(run, authority) == "second"


async def test_a_key_that_others_may_read_is_not_taken_over(
    secure: tuple[Run, Authority], caplog: pytest.LogCaptureFixture
) -> None:
    run, authority = secure
    authority.sign("second", file="stage")
    (run.folder / "stage.key").chmod(0o644)

    run.serving.reload()

    assert "others than its owner may use it" in caplog.text
    assert await certificate_of(run, authority) == "first"


async def test_an_authority_that_is_not_trusted_any_more_is_forgotten(
    secure: tuple[Run, Authority], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run, authority = secure
    run.write('[[identity]]\nname = "desk"\ncertificate = "desk-1"\n' + identity(OLD))
    run.serving.reload()
    old = authority.client_context(authority.sign("desk-1"))
    async with raw(run.server.port, old) as line:
        assert isinstance(await enter(line, make_session(None), ""), Welcome)
    shutil.copy(Authority(tmp_path_factory.mktemp("other"), "other").file, run.folder / "ca.pem")
    run.serving.reload()

    async with raw(run.server.port, old) as line:
        line.send(greeting(make_session(None), None))
        with pytest.raises((OSError, AssertionError)):
            assert isinstance(await line.receive(), Welcome)


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["[[identity", "identity = 1\n", '[[identity]]\nname = "x"\n', "[limits]\nnothing = 1\n"]
)
async def test_what_cannot_be_read_changes_nothing(run: Run, text: str, caplog: pytest.LogCaptureFixture) -> None:
    key = make_session(None)
    async with raw(run.server.port) as line:
        await enter(line, key, OLD)
        run.write(text)
        run.serving.reload()
        assert isinstance(await ask(line, key, "a", 1), Answer)

    assert "the configuration was not taken over, everything goes on as before" in caplog.text
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_file_that_is_gone_changes_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    (run.folder / "ordered_pubsub.toml").unlink()

    run.serving.reload()

    assert "everything goes on as before" in caplog.text


async def test_what_needs_a_restart_is_said(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.stage = run.stage.replace("memory", "sqlite:other.db")
    run.write(identity(OLD))

    run.serving.reload()

    assert "what else has changed in the configuration holds from the next start on" in caplog.text


async def test_what_is_as_it_was_is_not_complained_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.write(identity(OLD, '["b"]') + "[limits]\nconnections_max = 7\n")

    run.serving.reload()

    assert "from the next start on" not in caplog.text
    assert "were read again" in caplog.text


async def test_of_two_stages_both_take_it_over_or_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("high", "low"):
        authority.sign(name, file=name)
    stages = "".join(
        f'[[stage]]\nname = "{name}"\nlisten = "{HOST}:{free_port()}"\nstore = "memory"\n'
        f'tls = {{ cert = "{name}.pem", key = "{name}.key" }}\n'
        for name in ("high", "low")
    )
    run = make_run(tmp_path, identity(OLD), stages)
    await run.start()
    os.unlink(tmp_path / "low.key")
    run.write(identity(NEW))

    run.serving.reload()

    async with raw(run.server.port, authority.client_context()) as line:
        assert isinstance(await enter(line, make_session(None), OLD), Welcome)
    await run.stop()


# -- by itself --------------------------------------------------------------------------------------------------------


async def test_a_file_that_has_changed_is_read_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "WATCH_S", 0.01)
    run = make_run(tmp_path, identity(OLD))
    await run.start()
    await until(lambda: run.serving._seen)
    run.write(identity(NEW))

    await until(lambda: run.server.doors.access._by_token.get(hash_token(NEW)))
    seen = run.serving._seen
    (tmp_path / "ordered_pubsub.toml").unlink()
    await until(lambda: run.serving._seen != seen)  # that it is gone
    run.write(identity(OLD))
    await until(lambda: run.server.doors.access._by_token.get(hash_token(OLD)))
    await run.stop()


async def test_a_certificate_that_has_changed_is_read_again_by_itself(
    secure: tuple[Run, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_module, "WATCH_S", 0.01)
    run, authority = secure
    tls = run.server.doors.tls
    await run.stop()
    again = make_run(run.folder, identity(OLD), TLS_STAGE)
    await again.start()
    await until(lambda: again.serving._seen)
    tls = again.server.doors.tls
    authority.sign("second", file="stage")

    await until(lambda: again.server.doors.tls is not tls)
    assert await certificate_of(again, authority) == "second"
    await again.stop()


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "Input/output error", "/srv/secret/main.db"), " (Input/output error)"),
        (OSError(errno.ENOSPC, "No space left on device", "/srv/secret/main.db.mark"), " (the disk is full)"),
        (sqlite3.OperationalError("database or disk is full"), " (the disk is full)"),
        (sqlite3.OperationalError("disk I/O error"), " (disk I/O error)"),
        (JournalError("the store /srv/secret/main.db cannot be used: another process reads it; stop that one"), ""),
    ],
)
async def test_a_store_that_fails_shuts_everybody_out_until_it_is_mended(
    tmp_path: Path, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason, but not where the store is; what was not answered is asked again then, and has its number."""
    monkeypatch.setattr("ordered_pubsub.server.server.MEND_FIRST_S", 0.01)
    monkeypatch.setattr("ordered_pubsub.server.server.MEND_MOST_S", 0.05)
    open_again = Server._open_node
    is_mended = asyncio.Event()
    run = make_run(tmp_path, "", STAGE.replace("memory", "sqlite:main.db"))
    await run.start()
    key = make_session(None)

    def fail(journal: object) -> None:
        raise error

    def fail_again(server: Server) -> Store:
        if not is_mended.is_set():
            raise JournalError("the store /srv/secret/main.db cannot be opened") from error
        return open_again(server)

    with monkeypatch.context() as broken:
        broken.setattr("ordered_pubsub.server.store.store.SqliteJournal.sync", fail)
        broken.setattr(Server, "_open_node", fail_again)
        async with raw(run.server.port) as line:
            await enter(line, key, "")
            line.send(Ask([Request(key.session, 1, 1, 0, 0, (with_events(PublishAsk("a"), key.session),))]))
            told = await line.expect(Rejected)
        async with raw(run.server.port) as line:
            stranger = await line.expect(Rejected)
        assert told == stranger
        assert told.code == "unavailable"
        assert told.reason.startswith(f"this stage cannot use its store{reason}, and goes on by itself")
        assert "secret" not in told.reason
        assert run.server.health() == {"stage": "main", "ready": False, "reason": told.reason}
        await until(lambda: "main.db" in caplog.text)
    is_mended.set()

    await until(lambda: not run.server.doors.trouble)
    async with raw(run.server.port) as line:
        assert isinstance(await enter(line, key, ""), Welcome)
        answer = await ask(line, key, "a", 1)
    await run.stop()

    assert isinstance(answer, Answer)
    assert [part.first for part in answer.parts if isinstance(part, Publication)] == [1]


async def test_a_stage_whose_store_fails_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "", STAGE.replace("memory", "sqlite:main.db"))
    await run.start()
    key = make_session(None)

    def fail(journal: object) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("ordered_pubsub.server.store.store.SqliteJournal.sync", fail)
        async with raw(run.server.port) as line:
            await enter(line, key, "")
            line.send(Ask([Request(key.session, 1, 1, 0, 0, (with_events(PublishAsk("a"), key.session),))]))
            await line.expect(Rejected)
        await until(lambda: run.server.node._closing)
        await run.stop()

    again = make_run(tmp_path, "", STAGE.replace("memory", "sqlite:main.db"))
    await again.start()
    await again.stop()


async def test_a_stage_that_cannot_start_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    taken = free_port()
    listener = await asyncio.start_server(lambda reader, writer: None, HOST, taken)
    stages = "".join(
        f'[[stage]]\nname = "{name}"\nlisten = "{HOST}:{port}"\nstore = "sqlite:{name}.db"\n'
        for name, port in (("high", free_port()), ("low", taken))
    )
    run = make_run(tmp_path, "", stages)

    with pytest.raises(Exception, match="cannot listen"):
        await run.start()

    listener.close()
    again = make_run(tmp_path, "", stages)
    await again.start()
    await again.stop()
