"""What the environment and the arguments say about the client, over what the file says.

Each key of `[client]` has a variable: `ORDERED_PUBSUB_` and the key in capitals, with `TLS_` before those of its `tls` table. A
variable that begins so and belongs to no key is an error, since otherwise a slip of the pen would go unnoticed. An empty
one counts as not set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ordered_pubsub.config.kinds import Kind, Path, Unfit, did_you_mean, spell
from ordered_pubsub.config.records import NOT_IN_FILES, keys_of
from ordered_pubsub.config.schema import ClientSection
from ordered_pubsub.errors import ConfigurationError

PREFIX = "ORDERED_PUBSUB_"
FILE_VARIABLE = "ORDERED_PUBSUB_CONFIG"

NO_SETTINGS = re.compile(r"CONFIG|SEEDS|TEST_\w+")
"""What else begins with the prefix: the name of the file, and what this project's own tests are told."""
OF_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes tells every process near a service that is called ordered-pubsub, or ordered-pubsub-eu."""


@attrs.frozen
class Given:
    """A value for a key of the client, from elsewhere than the file."""

    origin: str
    path: Path
    value: object = attrs.field(repr=False)

    @property
    def key(self) -> str:
        """The key as it is shown."""
        return spell(self.path)

    def put_over(self, tables: dict[str, Any], origins: dict[Path, str]) -> None:
        """Put it into the tables of the file. Where something else than a table is in the way, that is found later."""
        table: Any = tables
        for key in self.path[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                return
        table[self.path[-1]] = self.value
        origins[self.path] = self.origin


def variables() -> dict[str, tuple[Path, Kind]]:
    """Each variable, with its key and what fits it."""
    return {PREFIX + "_".join(path[1:]).upper(): (path, kind) for path, kind in _client_keys()}


def _client_keys(record: type = ClientSection, path: tuple[str, ...] = ("client",)) -> Iterator[tuple[Any, Kind]]:
    for key, kind in keys_of(record).items():
        if kind.section is None:
            yield (*path, key), kind
        else:
            yield from _client_keys(kind.section, (*path, key))


def read_environment(environ: Mapping[str, str]) -> list[Given]:
    """What the environment gives."""
    known = variables()
    given = []
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or not text or _is_of_others(name, text):
            continue
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigurationError(
                f"{name} is unknown; {hint}{'; ' * bool(hint)}known are {', '.join(sorted(known))}"
            )
        path, kind = known[name]
        try:
            given.append(Given(name, path, kind.parse(text)))
        except ValueError:
            raise ConfigurationError(f"{name}: {Unfit(path, text, kind.fits)}") from None
    return given


def _is_of_others(name: str, text: str) -> bool:
    rest = name[len(PREFIX) :]
    if NO_SETTINGS.fullmatch(rest) or OF_KUBERNETES.fullmatch(rest):
        return True
    # Kubernetes' own is as in tcp://10.0.0.1:7411. A mere number is somebody's mistake.
    return rest.split("_")[-1] == "PORT" and "://" in text


def read_arguments(arguments: Mapping[str, Any]) -> list[Given]:
    """What arguments give: keys of `[client]`; None is not given."""
    known = [key for key in keys_of(ClientSection) if ("client", key) != NOT_IN_FILES]
    given = []
    for key, value in arguments.items():
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigurationError(
                f"argument {key!r} is unknown; {hint}{'; ' * bool(hint)}known are {', '.join(known)}"
            )
        if value is None:
            continue
        if key == "tls" and isinstance(value, Mapping):
            given += [Given("argument tls", ("client", "tls", inner), _plain(part)) for inner, part in value.items()]
        else:
            given.append(Given(f"argument {key}", ("client", key), _plain(value)))
    return given


def _plain(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
