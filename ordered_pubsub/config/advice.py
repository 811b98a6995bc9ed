"""What a configuration may say, and what its author perhaps did not mean."""

from __future__ import annotations

from collections.abc import Iterator

from ordered_pubsub.config.covering import covers
from ordered_pubsub.config.kinds import Path, spell
from ordered_pubsub.config.schema import MEMORY, Configuration, IdentitySection, StageSection

COMPARED_MAX = 100
"""With so many patterns before it one is compared, so that a long file is not read slowly."""


def find_advice(configuration: Configuration) -> tuple[str, ...]:
    """Warnings: nothing that would be refused, in the order of the file."""
    switches = (
        (configuration.insecure_allow_anyone, "insecure_allow_anyone: whoever reaches a stage may do everything"),
        (
            configuration.insecure_allow_plaintext,
            "insecure_allow_plaintext: who can listen on the network can read tokens and events, and use them",
        ),
    )
    return (
        *(said for is_on, said in switches if is_on),
        *_of_the_line(configuration),
        *_of_topics(configuration),
        *_of_identities(configuration),
    )


def _of_the_line(configuration: Configuration) -> Iterator[str]:
    patterns: list[tuple[str, Path]] = []
    for index, stage in enumerate(configuration.stage):
        yield from _of_stage(("stage", index), stage)
        own: list[tuple[str, Path]] = [
            (pattern, ("stage", index, "topics", place)) for place, pattern in enumerate(stage.topics)
        ]
        for pattern, path in own:
            yield from _shadowed(pattern, path, patterns, "owns nothing more")
        patterns += own
    are_all_here = all(stage.address.is_loopback for stage in configuration.stage)
    for index, stage in enumerate(configuration.stage):
        reached = stage.advertised
        if reached is not None and reached.is_loopback and not are_all_here:
            yield (
                f"stage[{index}] ({stage.name}) is reached at {reached}, so only from its own machine: say with advertise how "
                "the others reach it"
            )


def _of_stage(path: Path, stage: StageSection) -> Iterator[str]:
    here = f"{spell(path)} ({stage.name})"
    if stage.store == MEMORY:
        yield f"{here}: store = 'memory' forgets everything when the stage ends, and numbers begin again at 1"
    elif stage.durability == "none":
        yield f"{here}: durability = 'none' loses numbers in a crash, and the stage then refuses to start on its store"
    elif stage.durability == "os":
        yield f"{here}: durability = 'os' survives a crash of the stage, and not one of the machine"
    http = stage.http_address
    if http is not None and not http.is_loopback:
        yield f"{here}: http = {stage.http!r} shows health and metrics to everybody who reaches it"


def _of_topics(configuration: Configuration) -> Iterator[str]:
    patterns: list[tuple[str, Path]] = []
    for index, topic in enumerate(configuration.topic):
        path: Path = ("topic", index, "pattern")
        yield from _shadowed(topic.pattern, path, patterns, "never matches")
        patterns.append((topic.pattern, path))
    if configuration.topics == "listed":
        for pattern, path in patterns:
            if covers(pattern, "**"):
                yield f"{spell(path)} = {pattern!r} lists every topic, so topics = 'listed' refuses none"


def _shadowed(pattern: str, path: Path, earlier: list[tuple[str, Path]], outcome: str) -> Iterator[str]:
    for wide, place in earlier[:COMPARED_MAX]:
        if covers(wide, pattern):
            yield f"{spell(path)} = {pattern!r} {outcome}: {spell(place)} = {wide!r} comes first and matches all of it"
            return


def _of_identities(configuration: Configuration) -> Iterator[str]:
    identities = configuration.identity
    if identities is None:
        return
    if not identities:
        yield "identity = []: nobody can connect"
        return
    for index, identity in enumerate(identities):
        yield from _of_identity(("identity", index), identity, configuration)
    if len(configuration.stage) > 1:
        yield from _of_links(configuration, identities)


def _of_identity(path: Path, identity: IdentitySection, configuration: Configuration) -> Iterator[str]:
    here = f"{spell(path)} ({identity.name})"
    for right in ("publish", "subscribe"):
        for place, pattern in enumerate(getattr(identity.allow, right)):
            denied = [("deny." + right, wide) for wide in getattr(identity.deny, right) if covers(wide, pattern)]
            if denied:
                yield f"{spell((*path, 'allow', right, place))} = {pattern!r} allows nothing: {denied[0][0]} has {denied[0][1]!r}"
    if identity.allow == type(identity.allow)():
        yield f"{here} may do nothing: what is not allowed is denied"
    is_verified = any(stage.tls is not None and stage.tls.client_ca is not None for stage in configuration.stages)
    if identity.certificate is not None and not identity.token_sha256 and not is_verified:
        yield f"{here} has only a certificate, and no stage has tls.client_ca to verify it by"


def _of_links(configuration: Configuration, identities: tuple[IdentitySection, ...]) -> Iterator[str]:
    names = [stage.name for stage in configuration.stages]
    if not any(identity.may("stage", name) for identity in identities for name in names):
        yield "no identity has allow = { stage = true }, so the stages cannot link"
    for identity in identities:
        named = () if isinstance(identity.allow.stage, bool) else identity.allow.stage
        for strange in (name for name in named if name not in names):
            yield f"identity {identity.name!r} may link as stage {strange!r}, and there is none"
    for index, stage in enumerate(configuration.stage):
        if stage.token_file is None and stage.tls is None:
            yield f"stage[{index}] ({stage.name}) has neither token_file nor tls, so no other stage lets it link"
