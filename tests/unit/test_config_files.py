"""Tokens, and files that nobody else may read."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from ordered_pubsub.config.files import (
    check_files,
    hash_token,
    make_token,
    missing_files,
    read_token,
    token_of,
    write_token,
)
from ordered_pubsub.config.schema import ClientSection, ClientTls, StageSection, StageTls, is_token
from ordered_pubsub.errors import ConfigurationError

TOKEN = "a-token-that-is-long-enough-to-be-one"


def write(path: Path, text: str = TOKEN, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def refusal(path: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_token(path)
    return str(caught.value)


def test_a_token_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    assert read_token(write(tmp_path / "t", f" {TOKEN}\n\n")) == TOKEN


def test_a_token_is_written_so_that_it_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    token, path = make_token(), str(tmp_path / "t")
    before = os.umask(0)
    try:
        write_token(path, token)
    finally:
        os.umask(before)

    assert read_token(path) == token
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_token_that_was_written_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "t")

    with pytest.raises(ConfigurationError, match="is there already: name another file"):
        write_token(path, make_token())
    assert read_token(path) == TOKEN


def test_a_token_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        write_token(str(tmp_path / "none" / "t"), make_token())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o777])
def test_a_token_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    said = refusal(write(tmp_path / "t", mode=mode))

    assert f"has mode {mode:04o}, so others than its owner may use it; expected 0600" in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    "text", ["", " \n", "short", "x" * 31, "x" * 513, f"{TOKEN}\n{TOKEN}", TOKEN + "é", TOKEN + "\0"]
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    said = refusal(write(tmp_path / "t", text))

    assert "holds no token" in said
    assert "config token NAME" in said
    assert TOKEN not in said


def test_a_token_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert "cannot be used: No such file or directory" in refusal(str(tmp_path / "t"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    os.mkfifo(path, 0o600)

    assert "is not a file" in refusal(path)


def test_tokens_are_tokens_and_differ() -> None:
    assert is_token(make_token())
    assert make_token() != make_token()


def test_a_hash_is_that_of_the_token_alone() -> None:
    assert hash_token(TOKEN) == sha256(TOKEN.encode()).hexdigest()


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t", "another-token-that-is-long-enough-too")

    assert token_of(ClientSection(token=TOKEN, token_file=path)) == TOKEN
    assert token_of(ClientSection(token_file=path)) == "another-token-that-is-long-enough-too"
    assert token_of(StageSection(name="a", token_file=path)) == "another-token-that-is-long-enough-too"


def test_nobody_needs_a_token() -> None:
    assert token_of(ClientSection()) is None
    assert token_of(StageSection(name="a")) is None


@pytest.mark.parametrize("of", ["client", "stage"])
def test_a_private_key_that_others_may_use_is_refused(tmp_path: Path, of: str) -> None:
    public, key = write(tmp_path / "c", mode=0o644), write(tmp_path / "k", mode=0o640)
    section: ClientSection | StageSection = ClientSection(tls=ClientTls(ca=public, cert=public, key=key))
    if of == "stage":
        section = StageSection(name="a", tls=StageTls(cert=public, key=key, client_ca=public))

    with pytest.raises(ConfigurationError, match=r"the private key '.*k' has mode 0640"):
        check_files(section)
    os.chmod(key, 0o600)
    check_files(section)


def test_a_token_file_is_checked_with_the_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the token file .* has mode 0644"):
        check_files(StageSection(name="a", token_file=write(tmp_path / "t", mode=0o644)))


@pytest.mark.parametrize("missing", ["ca", "cert", "key"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    paths = {name: write(tmp_path / name) for name in ("ca", "cert", "key")}
    os.remove(paths[missing])
    section = ClientSection(tls=ClientTls(**paths))

    assert missing_files(section) == [paths[missing]]
    with pytest.raises(
        ConfigurationError, match=rf"the .* '{paths[missing]}' cannot be used: No such file or directory"
    ):
        check_files(section)


def test_a_folder_is_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the file of authorities .* is not a file that this user can read"):
        check_files(ClientSection(tls=ClientTls(ca=str(tmp_path))))


def test_the_file_of_a_token_that_the_environment_gives_need_not_be_there() -> None:
    assert missing_files(ClientSection(token=TOKEN, token_file="none")) == []
    assert missing_files(ClientSection(token_file="none")) == ["none"]
