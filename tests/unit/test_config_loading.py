"""How a configuration comes about: a file, the environment over it, arguments over that."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ordered_pubsub.config.reading import DEFAULT_FILE, FILE_BYTES_MAX, load, read_text
from ordered_pubsub.config.records import keys_of
from ordered_pubsub.config.schema import (
    ClientSection,
    Configuration,
)
from ordered_pubsub.errors import ConfigurationError, NotOffered

TOKEN = "a-token-that-is-long-enough-to-be-one"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder in which no file is found by chance."""
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = DEFAULT_FILE) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def load_refusal(*args: Any, **options: Any) -> str:
    """Why `load` refuses."""
    with pytest.raises(ConfigurationError) as caught:
        load(*args, **options)
    return str(caught.value)


# -- files, environment, arguments ------------------------------------------------------------------------------------


def test_no_file_is_fine() -> None:
    loaded = load(environ={})

    assert loaded.path is None
    assert loaded.configuration == Configuration()


def test_a_file_in_the_current_folder_is_found() -> None:
    write('client.name = "a"')

    assert (load(environ={}).path, load(environ={}).configuration.client.name) == (DEFAULT_FILE, "a")


def test_an_argument_names_another_file_than_the_environment_and_that_another_than_the_folder() -> None:
    write('client.name = "folder"')
    environ = {"ORDERED_PUBSUB_CONFIG": str(write('client.name = "environment"', "e.toml"))}
    argument = str(write('client.name = "argument"', "a.toml"))

    assert load(argument, environ).configuration.client.name == "argument"
    assert load(None, environ).configuration.client.name == "environment"


def test_arguments_go_over_the_environment_and_that_over_the_file() -> None:
    write('[client]\nname = "file"\ntimeout_s = 1\nttl_s = 1')
    loaded = load(
        environ={"ORDERED_PUBSUB_TIMEOUT_S": "2", "ORDERED_PUBSUB_TTL_S": "2"}, arguments={"ttl_s": 3, "name": None}
    )
    client = loaded.configuration.client

    assert (client.name, client.timeout_s, client.ttl_s) == ("file", 2, 3)
    assert loaded.environment == (
        ("ORDERED_PUBSUB_TIMEOUT_S", "client.timeout_s"),
        ("ORDERED_PUBSUB_TTL_S", "client.ttl_s"),
    )


def test_every_key_of_the_client_has_a_variable() -> None:
    environ = {
        "ENS": "nats://h", "SEQUENCER": "ops://a, ops://b:1", "NAME": "n", "DELIVERY": "ordered", "TOKEN": TOKEN,
        "TOKEN_FILE": "t", "TLS_CA": "ca", "TLS_CERT": "cert", "TLS_KEY": "key", "UNORDERED": "deliver", "LINGER_S": "0.5",
        "BATCH_EVENTS_MAX": "9", "TIMEOUT_S": "1.5", "PIPELINE_EVENTS_MAX": "1", "PIPELINE_BYTES_MAX": "2",
        "PAYLOAD_BYTES_MAX": "3", "QUEUE_EVENTS_MAX": "4", "QUEUE_BYTES_MAX": "5", "BUFFER_EVENTS_MAX": "6", "TTL_S": "7",
        "BUFFER_BYTES_MAX": "8", "CONNECT_TIMEOUT_S": "2", "UNACKNOWLEDGED_EVENTS_MAX": "9",
    }  # fmt: skip
    client = load(environ={f"ORDERED_PUBSUB_{key}": value for key, value in environ.items()}).configuration.client

    assert {key for key in keys_of(ClientSection) if getattr(client, key) == getattr(ClientSection(), key)} == set()
    assert client.sequencer == ("ops://a", "ops://b:1")
    assert client.tls is not None
    assert (client.tls.ca, client.tls.cert, client.tls.key) == ("ca", "cert", "key")
    assert (client.linger_s, client.batch_events_max, client.ttl_s) == (0.5, 9, 7)


def test_a_part_of_a_table_can_be_changed() -> None:
    write('client.tls = { ca = "ca", cert = "a", key = "a.key" }')
    environ = {"ORDERED_PUBSUB_TLS_CERT": "b", "ORDERED_PUBSUB_TLS_KEY": "b.key"}
    tls = load(environ=environ, arguments={"tls": {"key": "c.key"}}).configuration.client.tls

    assert tls is not None
    assert (tls.ca, tls.cert, tls.key) == (os.path.abspath("ca"), "b", "c.key")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TIMEOUT_S", "soon", "ORDERED_PUBSUB_TIMEOUT_S: client.timeout_s='soon' does not fit; timeout_s is a number of seconds"),
        ("TTL_S", "nan", "ORDERED_PUBSUB_TTL_S: client.ttl_s=nan does not fit"),
        ("QUEUE_EVENTS_MAX", "1.5", "client.queue_events_max='1.5' does not fit; queue_events_max is a whole number from 1 on"),
        ("SEQUENCER", "ops://a,b", "ORDERED_PUBSUB_SEQUENCER: client.sequencer[1]='b' does not fit"),
        ("TIMOUT_S", "1", "ORDERED_PUBSUB_TIMOUT_S is unknown; did you mean 'ORDERED_PUBSUB_TIMEOUT_S'; known are "),
        ("PORT", "7411", "ORDERED_PUBSUB_PORT is unknown"),
        ("CLIENT_ENS", "x", "ORDERED_PUBSUB_CLIENT_ENS is unknown"),
    ],
)  # fmt: skip
def test_a_bad_variable_is_named(name: str, value: str, says: str) -> None:
    assert says in load_refusal(environ={f"ORDERED_PUBSUB_{name}": value})


def test_a_bad_token_in_the_environment_is_not_shown() -> None:
    said = load_refusal(environ={"ORDERED_PUBSUB_TOKEN": "secret"})

    assert "ORDERED_PUBSUB_TOKEN: client.token (6 characters, not shown) does not fit" in said
    assert "secret" not in said


def test_an_empty_variable_is_not_set() -> None:
    assert load(environ={"ORDERED_PUBSUB_NAME": "", "ORDERED_PUBSUB_CONFIG": ""}).configuration == Configuration()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEEDS", "60"),
        ("TEST_BROKER", "x"),
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "7411"),
        ("SERVICE_PORT_OPS", "7411"),
        ("PORT", "tcp://10.0.0.1:7411"),
        ("PORT_7411_TCP", "tcp://10.0.0.1:7411"),
        ("PORT_7411_TCP_PORT", "7411"),
        ("PORT_7411_TCP_ADDR", "10.0.0.1"),
        ("EU_SERVICE_HOST", "10.0.0.1"),
        ("EU_PORT", "tcp://10.0.0.1:7411"),
    ],
)
def test_variables_that_are_not_meant_for_clients_change_nothing(name: str, value: str) -> None:
    loaded = load(environ={f"ORDERED_PUBSUB_{name}": value})

    assert (loaded.configuration, loaded.environment) == (Configuration(), ())


def test_the_environment_is_that_of_the_process_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_NAME", "me")

    assert load().configuration.client.name == "me"
    assert load(environ={}).configuration.client.name is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"timeout_s": -1}, "argument timeout_s: client.timeout_s=-1 does not fit"),
        ({"tiemout_s": 1}, "argument 'tiemout_s' is unknown; did you mean 'timeout_s'"),
        ({"token": TOKEN}, "argument 'token' is unknown; did you mean 'token_file'"),
        ({"tls": {"caa": "x"}}, "argument tls: client.tls.caa is unknown; did you mean 'ca'"),
        ({"tls": 1}, "argument tls: client.tls=1 does not fit; tls is a table"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], says: str) -> None:
    said = load_refusal(environ={}, arguments=arguments)

    assert says in said
    assert TOKEN not in said


def test_what_is_in_the_way_of_a_variable_is_what_is_refused() -> None:
    write("client = 3")

    assert load_refusal(environ={"ORDERED_PUBSUB_NAME": "x"}) == (
        f"{DEFAULT_FILE}, line 1: client=3 does not fit; client is a table"
    )


def test_paths_begin_at_the_folder_of_the_file() -> None:
    path = write(
        '[client]\ntoken_file = "t"\ntls.ca = "/abs/ca"\n[[stage]]\nname = "a"\nstore = "sqlite:x.db"\n'
        'tls = { cert = "c", key = "k" }\n[[stage]]\nname = "b"\nlisten = ":7412"',
        "folder/o.toml",
    )
    configuration, folder = load(str(path), {}).configuration, os.path.abspath("folder")
    first, second = configuration.stage

    assert configuration.client.token_file == f"{folder}/t"
    assert configuration.client.tls is not None
    assert configuration.client.tls.ca == "/abs/ca"
    assert (first.store_path, second.store_path) == (f"{folder}/x.db", f"{folder}/ordered_pubsub-b.db")
    assert first.tls is not None
    assert (first.tls.cert, first.tls.key) == (f"{folder}/c", f"{folder}/k")


def test_the_store_of_the_stage_that_nobody_names_is_beside_the_file_too() -> None:
    (stage,) = load(str(write("", "folder/o.toml")), {}).configuration.stages

    assert stage.store_path == os.path.abspath("folder/ordered_pubsub-main.db")


def test_paths_of_the_environment_and_of_arguments_begin_where_the_process_is() -> None:
    path = str(write('client.token_file = "t"', "folder/o.toml"))

    assert load(path, {"ORDERED_PUBSUB_TOKEN_FILE": "e"}).configuration.client.token_file == "e"
    assert load(path, {}, {"token_file": Path("a")}).configuration.client.token_file == "a"


def test_a_file_that_is_named_must_be_there() -> None:
    for said in (load_refusal("x.toml", {}), load_refusal(None, {"ORDERED_PUBSUB_CONFIG": "x.toml"})):
        assert said.startswith(
            "the configuration 'x.toml' cannot be read: No such file or directory; name another file"
        )


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo("p")

    assert load_refusal("p", {}) == "the configuration 'p' is not a file"


def test_a_folder_is_no_configuration() -> None:
    assert "is not a file" in load_refusal(os.getcwd(), {}) or "Is a directory" in load_refusal(os.getcwd(), {})


def test_a_file_that_is_not_utf_8_is_refused() -> None:
    Path("x.toml").write_bytes(b"a = '\xff'")

    assert "is not UTF-8" in load_refusal("x.toml", {})


def test_a_file_that_is_too_large_is_refused() -> None:
    write("#" * (FILE_BYTES_MAX + 1), "x.toml")

    assert f"has more than {FILE_BYTES_MAX} bytes" in load_refusal("x.toml", {})


def test_a_password_that_everybody_can_read_is_warned_of() -> None:
    write('client.ens = "mqtt://u:secret@h"').chmod(0o644)
    (note,) = load(environ={}).notes

    assert "line 1: client.ens holds a password, and everybody on this machine can read it" in note
    assert load(environ={"ORDERED_PUBSUB_ENS": "mqtt://u:secret@h"}).notes == ()
    Path(DEFAULT_FILE).chmod(0o600)
    assert load(environ={}).notes == ()


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_file_that_everybody_can_write_is_refused(mode: int) -> None:
    write("").chmod(mode)

    refusal = load_refusal(None, {})
    assert f"has mode {mode:04o}, so everybody on this machine may change whom it lets in" in refusal
    assert f"chmod go-w {DEFAULT_FILE}" in refusal


@pytest.mark.parametrize(
    ("name", "members", "is_refused"),
    [("me", [], False), ("me", ["me"], False), ("me", ["me", "you"], True), ("staff", [], True), (None, [], True)],
)
def test_a_file_that_a_group_can_write_is_refused_unless_it_is_the_owners_own(
    monkeypatch: pytest.MonkeyPatch, name: str | None, members: list[str], is_refused: bool
) -> None:
    write("").chmod(0o664)

    def group(number: int) -> grp.struct_group:
        if name is None:
            raise KeyError(number)
        return grp.struct_group((name, "x", number, members))

    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("me", "x", number, 0, "", "/", "/bin/sh")))
    if is_refused:
        assert "has mode 0664, so a group may change whom it lets in" in load_refusal(None, {})
    else:
        load(environ={})


# -- later releases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[group]]\ntopics = ["a", "b"]', "line 1: group[0] is not available yet"),
    ],
)  # fmt: skip
def test_what_a_later_release_brings_is_read_and_refused_by_name(text: str, says: str) -> None:
    read_text(text)
    write(text)

    with pytest.raises(NotOffered) as caught:
        load(environ={})
    assert says in str(caught.value)


@pytest.mark.parametrize("delivery", ["exactly-once", "ordered"])
def test_both_levels_of_topics_are_there(delivery: str) -> None:
    """And clients may demand either."""
    write(f'[client]\ndelivery = "{delivery}"\n[[topic]]\npattern = "a/**"\ndelivery = "{delivery}"')

    configuration = load(environ={}).configuration
    assert configuration.client.delivery == delivery
    assert configuration.levels.of("a/b") == delivery
    assert configuration.levels.of("b") == "exactly-once"


def test_what_a_later_release_brings_is_checked_already() -> None:
    retention = 'topic = [{ pattern = "**", delivery = "exactly-once", retention = { keep_age = "1x" } }]'

    assert "topic[0].retention.keep_age='1x' does not fit" in load_refusal(str(write(retention)), {})
