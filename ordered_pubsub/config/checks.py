"""What fits by itself and does not fit together.

Each check takes the whole configuration, and raises a `Conflict` that names one of the keys. Nothing here looks at files or at
the network, since most of a file is about other machines; what matters only to stages that run in one process is
in `stages_to_serve`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs

from ordered_pubsub.config.kinds import Path, spell
from ordered_pubsub.config.schema import MEMORY, Configuration, StageSection
from ordered_pubsub.core.messages import ANYBODY
from ordered_pubsub.errors import ConfigurationError


class Conflict(ConfigurationError):
    """A value does not fit what is said elsewhere."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(spell(path) + " " * (not why.startswith("=")) + why)


def check(configuration: Configuration) -> None:
    """Raise a `Conflict` if the parts of a configuration do not fit together."""
    for one in _CHECKS:
        one(configuration)


def stages_to_serve(
    configuration: Configuration, name: str | None = None, listen: str | None = None
) -> tuple[StageSection, ...]:
    """The stages that one process is to run: the named one, or all; `listen` takes the place of a single one's.

    They must be able to run on one machine, and each must be allowed to listen where it is to.
    """
    names = [stage.name for stage in configuration.stages]
    chosen = tuple(stage for stage in configuration.stages if name in (None, stage.name))
    if not chosen:
        raise ConfigurationError(f"there is no stage {name!r} in the configuration; there are {', '.join(names)}")
    if listen is not None:
        if len(chosen) > 1:
            raise ConfigurationError(
                f"listen={listen!r} is for one stage, and the configuration has {len(chosen)}: name one of them "
                f"({', '.join(stage.name for stage in chosen)})"
            )
        chosen = (attrs.evolve(chosen[0], listen=listen),)
        _check_listener(configuration, names.index(chosen[0].name), chosen[0])
    _check_on_one_machine(chosen)
    return chosen


def _check_on_one_machine(chosen: tuple[StageSection, ...]) -> None:
    """Two stages in one process need an address and a store each."""
    taken = [
        (stage, key, address)
        for stage in chosen
        for key, address in (("listen", stage.address), ("http", stage.http_address))
        if address is not None
    ]
    for number, (stage, key, address) in enumerate(taken):
        for other, other_key, other_address in taken[:number]:
            if address.overlaps(other_address):
                raise ConfigurationError(
                    f"stage {stage.name!r} cannot have {key}={address.host_and_port!r} in one process with stage "
                    f"{other.name!r}, which has {other_key}={other_address.host_and_port!r}: give one of them another port, "
                    "or serve one stage only, by its name"
                )
    stores: dict[str, str] = {}
    for stage in chosen:
        path = stage.store_path
        if path is not None and stores.setdefault(os.path.normpath(path), stage.name) != stage.name:
            raise ConfigurationError(
                f"stages {stores[os.path.normpath(path)]!r} and {stage.name!r} have one store, {path!r}: give them a file each"
            )


# -- client -----------------------------------------------------------------------------------------------------------


def _check_client(configuration: Configuration) -> None:
    client = configuration.client
    if client.tls is not None and (client.tls.cert is None) != (client.tls.key is None):
        missing = "key" if client.tls.key is None else "cert"
        raise Conflict(("client", "tls"), f"has no {missing!r}: a certificate and its private key come together")
    if client.linger_s and client.batch_events_max == 1:
        raise Conflict(
            ("client", "linger_s"),
            "lets events wait for others to share a message with, and batch_events_max=1 lets them share none: raise "
            "batch_events_max, or leave linger_s out",
        )


# -- stages -----------------------------------------------------------------------------------------------------------


def _check_stages(configuration: Configuration) -> None:
    stages = configuration.stages
    for index, stage in enumerate(stages):
        path = ("stage", index)
        if stage.store == MEMORY and stage.durability != "none":
            raise Conflict(
                (*path, "durability"),
                f"={stage.durability!r} cannot be given by store='memory': name a file, as in 'sqlite:{stage.name}.db', or "
                "leave durability out",
            )
        if stage.http_address is not None and stage.http_address.overlaps(stage.address):
            raise Conflict((*path, "http"), "is where the stage listens for clients: give it another port")
        _check_listener(configuration, index, stage)
        _check_reached(configuration, index, stage)
        for earlier in range(index):
            _check_pair(earlier, stages[earlier], index, stage)
        if len(stages) > 1 and stage.advertised is None:
            raise Conflict(
                (*path, "advertise"),
                f"is needed: the other stages cannot reach listen={stage.listen!r}; say how they can, as in "
                f"advertise = 'ops://{stage.name}.example:7411'",
            )


def _check_listener(configuration: Configuration, index: int, stage: StageSection) -> None:
    """A stage that other machines can reach knows whom it lets in, and nobody listens in."""
    if stage.address.is_loopback or configuration.insecure_allow_anyone:
        return
    path = ("stage", index, "listen")
    reached = f"={stage.listen!r} can be reached from other machines, and "
    if configuration.is_anyone_let_in:
        raise Conflict(
            path,
            reached
            + "no [[identity]] says who may connect: add identities ('ordered-pubsub config token NAME' makes one), "
            "listen at 127.0.0.1, or let everybody in by insecure_allow_anyone = true",
        )
    if stage.tls is None and not configuration.insecure_allow_plaintext:
        raise Conflict(
            path,
            reached
            + "tokens would travel there without TLS: add tls = { cert = ..., key = ... }, listen at 127.0.0.1, or "
            "let them be read on the way by insecure_allow_plaintext = true",
        )


def _check_reached(configuration: Configuration, index: int, stage: StageSection) -> None:
    """Where others are told to reach a stage, their tokens travel, whatever it listens at behind that."""
    reached = stage.advertised
    if reached is None or reached.tls or reached.is_loopback or configuration.insecure_allow_plaintext:
        return
    dial = [later.name for later in configuration.stages[index + 1 :] if later.token_file is not None]
    if dial or any(identity.token_sha256 for identity in configuration.identity or ()):
        said = "advertise" if stage.advertise is not None else "listen"
        raise Conflict(
            ("stage", index, said),
            f"={getattr(stage, said)!r} is where others reach the stage, and tokens would travel there without TLS"
            f"{f' (that of stage {dial[0]!r} is shown there)' if dial else ''}: add tls = {{ cert = ..., key = ... }}, or an "
            "opss:// address if something before the stage speaks TLS for it, or let them be read on the way by "
            "insecure_allow_plaintext = true",
        )


def _check_pair(index: int, one: StageSection, later_index: int, two: StageSection) -> None:
    path: Path = ("stage", later_index)
    if one.name == two.name:
        raise Conflict((*path, "name"), f"={two.name!r} is the name of stage[{index}] already: names must differ")
    reached = [stage.advertised.host_and_port for stage in (one, two) if stage.advertised is not None]
    said = "advertise" if two.advertise is not None else "listen"
    if len(reached) == 2 and reached[0] == reached[1] and (one.advertise, two.advertise) != (None, None):
        raise Conflict(
            (*path, said),
            f"={getattr(two, said)!r} is where stage[{index}] ({one.name}) is reached already: each has its own",
        )
    here, there = one.address, two.address
    if (here.host, here.port) == (there.host, there.port) and here.port and None in (one.advertise, two.advertise):
        raise Conflict(
            (*path, "listen"),
            f"={two.listen!r} is where stage[{index}] ({one.name}) listens already: give it another port, or, if the two run on "
            "two machines, say with advertise how each is reached",
        )


# -- topics -----------------------------------------------------------------------------------------------------------


def _check_topics(configuration: Configuration) -> None:
    if configuration.topics == "listed" and not configuration.topic:
        raise Conflict(
            ("topics",), "='listed' lets only those topics exist that a [[topic]] names, and there is none: add some"
        )
    for index, topic in enumerate(configuration.topic):
        path, retention = ("topic", index, "retention"), topic.retention
        if retention is None:
            continue
        if topic.delivery != "exactly-once":
            raise Conflict(
                path, f"is for topics with delivery='exactly-once'; of {topic.delivery!r} ones nothing is kept"
            )
        policy = retention.policy
        if policy.keep_age_s > policy.max_age_s:
            raise Conflict(path, f"keeps for at least {retention.keep_age!r} and for at most {retention.max_age!r}")
        if (policy.keep_bytes or 0) > (policy.max_bytes or policy.keep_bytes or 0):
            raise Conflict(path, f"keeps at least {retention.keep_bytes!r} and at most {retention.max_bytes!r}")


def _check_groups(configuration: Configuration) -> None:
    taken: dict[str, int] = {}
    for index, group in enumerate(configuration.group):
        for place, topic in enumerate(group.topics):
            if topic in taken:
                raise Conflict(
                    ("group", index, "topics", place), f"={topic!r} is in group[{taken[topic]}] already: it is in one"
                )
            taken[topic] = index


# -- who may connect --------------------------------------------------------------------------------------------------


def _check_identities(configuration: Configuration) -> None:
    if configuration.identity is None:
        return
    if configuration.insecure_allow_anyone:
        raise Conflict(
            ("insecure_allow_anyone",),
            "lets everybody do everything, and there are identities with rights: remove one of the two",
        )
    names: dict[str, int] = {}
    proofs: dict[str, int] = {}
    for index, identity in enumerate(configuration.identity):
        path: Path = ("identity", index)
        _take(names, identity.name, index, (*path, "name"), f"={identity.name!r} is the name of")
        if identity.name == ANYBODY:
            raise Conflict(
                (*path, "name"), f"={ANYBODY!r} stands for everybody where there are no identities: take another one"
            )
        for proof in identity.token_sha256:
            _take(proofs, proof, index, (*path, "token_sha256"), "has a hash that belongs to")
        if identity.certificate is not None:
            certificate = f"certificate {identity.certificate}"
            _take(proofs, certificate, index, (*path, "certificate"), f"={identity.certificate!r} belongs to")
        elif not identity.token_sha256:
            raise Conflict(
                path,
                f"({identity.name}) has neither token_sha256 nor certificate, so nobody could be it: give it one of them",
            )


def _take(taken: dict[str, int], value: str, index: int, path: Path, said: str) -> None:
    if value in taken:
        raise Conflict(path, f"{said} identity[{taken[value]}] already")
    taken[value] = index


def _check_limits(configuration: Configuration) -> None:
    limits = configuration.limits
    for small, large in (
        ("payload_bytes_max", "frame_bytes_max"),
        ("frame_bytes_max", "buffered_bytes_max"),
        ("unauthenticated_bytes_max", "frame_bytes_max"),
    ):
        if getattr(limits, small) > getattr(limits, large):
            raise Conflict(
                ("limits", large),
                f"={getattr(limits, large)} is less than {small}={getattr(limits, small)}, which has to fit into it",
            )


def _check_times(configuration: Configuration) -> None:
    times = configuration.times
    if times.values.named_ttl_s < times.values.session_ttl_s:
        raise Conflict(
            ("times", "named_ttl"),
            f"={times.named_ttl!r} is less than session_ttl={times.session_ttl!r}: a subscription with a name is kept at least "
            "as long as one without",
        )


_CHECKS: tuple[Callable[[Configuration], None], ...] = (
    _check_client,
    _check_stages,
    _check_topics,
    _check_groups,
    _check_identities,
    _check_limits,
    _check_times,
)
