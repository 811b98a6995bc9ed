"""Reads a configuration: a text, a file, the environment over it, arguments over that.

Theory of operation
===================
The file becomes tables, and what the environment and the arguments say for `[client]` is put over them, with a note of where it
came from. Then the records of `schema` are made of the tables (`records`), each by the kinds of its fields. So there is one
way for a value to be checked, wherever it came from, and one for an error to say what is wrong: where it is (file and line,
variable, or argument), which key, what came, what fits, and the nearest that is known. `read_text` is all of this for a text
alone; it looks at nothing else, and raises nothing but `ConfigurationError`, whatever the text.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Mapping
from typing import Any

import attrs

from ordered_pubsub.config.advice import find_advice
from ordered_pubsub.config.checks import Conflict, check
from ordered_pubsub.config.kinds import Path, redacted
from ordered_pubsub.config.lines import find_lines, toml
from ordered_pubsub.config.overlay import FILE_VARIABLE, read_arguments, read_environment
from ordered_pubsub.config.records import NOT_IN_FILES, Source, read_record
from ordered_pubsub.config.schema import Configuration
from ordered_pubsub.errors import ConfigurationError, NotOffered

DEFAULT_FILE = "ordered_pubsub.toml"
FILE_BYTES_MAX = 1 << 20

_TOKEN_ELSEWHERE = (
    "client.token is not written here, where too many could read it: a token is in a file of its own, which only its owner may "
    "read (token_file), or in ORDERED_PUBSUB_TOKEN"
)


@attrs.frozen
class Loaded:
    """A configuration, and how it came about."""

    configuration: Configuration
    path: str | None
    """the file that was read; None if there was none"""
    notes: tuple[str, ...] = ()
    """what is allowed, and perhaps not meant"""
    environment: tuple[tuple[str, str], ...] = ()
    """the variables that changed something, each with its key"""


def load(
    path: str | None = None, environ: Mapping[str, str] | None = None, arguments: Mapping[str, Any] | None = None
) -> Loaded:
    """The configuration of this process.

    The file is `path`, or what ORDERED_PUBSUB_CONFIG names, or `ordered_pubsub.toml` in the current folder; none is fine. Over
    its `[client]` table goes the environment (`environ`; left out: that of the process), over that `arguments`: keys of that
    table, of which those that are None are not given.
    """
    environ = os.environ if environ is None else environ
    given = read_environment(environ)
    found = path or environ.get(FILE_VARIABLE) or (DEFAULT_FILE if os.path.lexists(DEFAULT_FILE) else None)
    text, mode = _read_file(found) if found is not None else ("", 0)
    folder = os.path.dirname(os.path.abspath(found)) if found is not None else ""
    tables = parse(text, found or "")
    origins: dict[Path, str] = {}
    for one in (*given, *read_arguments(arguments or {})):
        one.put_over(tables, origins)
    source = Source(found or "", folder, find_lines(text), origins)
    configuration = read_tables(tables, source)
    if configuration.group:
        raise NotOffered(
            f"{source.place(('group', 0))}group[0] is not available yet: it comes with a later release; histories are not kept "
            "yet; leave it out (subscriptions that hold several topics have them in one order anyway)"
        )
    notes = find_advice(configuration)
    ens = configuration.client.ens
    if mode & stat.S_IROTH and ens is not None and redacted(ens) != ens and ("client", "ens") not in origins:
        said = "client.ens holds a password, and everybody on this machine can read it"
        remedy = f"chmod o-r {source.name}, or give it by ORDERED_PUBSUB_ENS"
        notes = (f"{source.place(('client', 'ens'))}{said}: {remedy}", *notes)
    return Loaded(configuration, found, notes, tuple((one.origin, one.key) for one in given))


# -- texts and tables -------------------------------------------------------------------------------------------------


def read_text(text: str, name: str = "", folder: str = "") -> Configuration:
    """The configuration that a TOML text holds. Pure: relative paths in it are relative to `folder`, and not looked at."""
    return read_tables(parse(text, name), Source(name, folder, find_lines(text)))


def parse(text: str, name: str = "") -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        tables: dict[str, Any] = toml.loads(text)
    except RecursionError:
        raise ConfigurationError(f"{name or 'the text'} is nested too deeply to be read as TOML") from None
    except (
        ValueError
    ) as error:  # what the reader raises is one, and so is what Python says of a number that is too long
        raise ConfigurationError(f"{name or 'the text'} is not valid TOML: {error}") from None
    return tables


def read_tables(tables: Mapping[str, Any], source: Source | None = None) -> Configuration:
    """The configuration that tables hold."""
    source = source or Source()
    client = tables.get("client")
    if isinstance(client, dict) and "token" in client and NOT_IN_FILES not in source.origins:
        raise source.error(NOT_IN_FILES, _TOKEN_ELSEWHERE)
    configuration = read_record(Configuration, tables, (), source)
    configuration = attrs.evolve(configuration, folder=source.folder, lines=source.lines)
    try:
        check(configuration)
    except Conflict as error:
        raise source.error(error.path, str(error)) from None
    return configuration


# -- files ------------------------------------------------------------------------------------------------------------


def _read_file(path: str) -> tuple[str, int]:
    """A file's text and mode."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            mode = status.st_mode
            if not stat.S_ISREG(mode):
                raise ConfigurationError(f"the configuration {path!r} is not a file")
            _refuse_strangers(path, status)
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"the configuration {path!r} cannot be read: {error.strerror}; name another file by an argument or by "
            f"{FILE_VARIABLE}"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(
            f"the configuration {path!r} has more than {FILE_BYTES_MAX} bytes; is it the right file?"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the configuration {path!r} is not UTF-8, as TOML is: {error}") from None
    return text, mode


def _refuse_strangers(path: str, status: os.stat_result) -> None:
    """Nobody but its owner, and root, may change whom it lets in."""
    mode = status.st_mode
    if mode & stat.S_IWOTH:
        who = "everybody on this machine"
    elif mode & stat.S_IWGRP and not _is_private_group(status.st_gid, status.st_uid):
        who = "a group"
    else:
        return
    raise ConfigurationError(
        f"the configuration {path!r} has mode {stat.S_IMODE(mode):04o}, so {who} may change whom it lets in and what they may "
        f"do: look through it, and chmod go-w {path}"
    )


def _is_private_group(group_id: int, user_id: int) -> bool:
    """Whether a group is its user's own, as many systems give one to each: nobody else is in it."""
    try:
        group, user = grp.getgrgid(group_id), pwd.getpwuid(user_id).pw_name
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
