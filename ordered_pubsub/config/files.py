"""Tokens, and the files that nobody else may read.

A token is a long random text. Whoever connects shows it; a stage has only its SHA-256, which tells nobody the token, because
there is nothing to guess in it. A file with a token or a private key that others than its owner may read is refused, before
it is used, and not only warned of: what was readable has to be taken for read.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from secrets import token_urlsafe

from ordered_pubsub.config.schema import TOKEN, ClientSection, ClientTls, StageSection, is_token
from ordered_pubsub.errors import ConfigurationError

TOKEN_FILE_BYTES_MAX = 4_096
TOKEN_FILE = "token file"
PRIVATE_KEY = "private key"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_token() -> str:
    """A new token, of 256 random bits."""
    return token_urlsafe(32)


def hash_token(token: str) -> str:
    """What `token_sha256` of an identity is for a token."""
    return sha256(token.encode()).hexdigest()


def token_of(section: ClientSection | StageSection) -> str | None:
    """The token that a client, or a stage that links to another, shows; None if it has none."""
    if isinstance(section, ClientSection) and section.token is not None:
        return section.token
    return None if section.token_file is None else read_token(section.token_file)


def read_token(path: str) -> str:
    """The token in a file that only its owner may read. Space around it does not count."""
    try:
        # Without waiting: something that is no file might have nobody who writes to it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            _check_private(os.fstat(file.fileno()), path, TOKEN_FILE)
            token = file.read(TOKEN_FILE_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise _unusable(path, TOKEN_FILE, error) from None
    if not is_token(token):
        raise ConfigurationError(
            f"the token file {path!r} holds no token, but {len(token)} characters; a token is {TOKEN.fits}"
        )
    return token


def write_token(path: str, token: str) -> None:
    """Write a token into a new file that only its owner may read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{path!r} is there already: name another file, or remove it first") from None
    except OSError as error:
        raise ConfigurationError(f"{path!r} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")


def check_files(section: ClientSection | StageSection) -> None:
    """Raise unless the files that a client or a stage needs are there, and the secret ones are only its owner's."""
    for path, what in _files_of(section):
        try:
            found = os.stat(path)
        except OSError as error:
            raise _unusable(path, what, error) from None
        if what == PRIVATE_KEY:
            _check_private(found, path, what)
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.R_OK):
            raise ConfigurationError(f"the {what} {path!r} is not a file that this user can read")
    token_of(section)


def missing_files(section: ClientSection | StageSection) -> list[str]:
    """The files that a client or a stage needs and that are not on this machine."""
    named = [path for path, _ in _files_of(section)]
    if section.token_file is not None and getattr(section, "token", None) is None:
        named.append(section.token_file)
    return [path for path in named if not os.path.lexists(path)]


def _check_private(found: os.stat_result, path: str, what: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"the {what} {path!r} is not a file")
    if found.st_mode & _OTHERS:
        raise ConfigurationError(
            f"the {what} {path!r} has mode {stat.S_IMODE(found.st_mode):04o}, so others than its owner may use it; expected "
            f"0600: take what it holds for known, replace it, and chmod 600 {path}"
        )


def _unusable(path: str, what: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"the {what} {path!r} cannot be used: {error.strerror}")


def _files_of(section: ClientSection | StageSection) -> list[tuple[str, str]]:
    tls = section.tls
    if tls is None:
        return []
    authorities = tls.ca if isinstance(tls, ClientTls) else tls.client_ca
    named = ((authorities, "file of authorities"), (tls.cert, "certificate"), (tls.key, PRIVATE_KEY))
    return [(path, what) for path, what in named if path is not None]
