"""Which stage owns what.

The stages stand on a line in the order of their rank, 0 the highest. A topic belongs to the first stage one of whose
patterns matches it; where none does, rendezvous hashing chooses among all stages. A subscription's registrar is chosen by
hashing its id in the same way, so anybody who knows the topology finds both without asking.

The topology is fixed for the life of a system: `fingerprint` is compared when stages connect, and a stage's journal
remembers what it owns (`Topology.check_still_owned`), since a topic that moved would start again at number 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import attrs

from ordered_pubsub.core.topics import check_pattern, matches
from ordered_pubsub.errors import ConfigurationError, TopologyMismatch

OWNERS_REMEMBERED_MAX = 50_000


@attrs.frozen
class StageSpec:
    """One stage of the line: its name and the patterns of the topics that it owns."""

    name: str
    topics: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ConfigurationError("a stage needs a name")
        for pattern in self.topics:
            check_pattern(pattern)


@attrs.frozen
class Topology:
    """The line of stages, the same at every stage and client of one system."""

    stages: tuple[StageSpec, ...]
    _owners: dict[str, int] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise ConfigurationError("a topology needs at least one stage")
        if len(set(names)) != len(names):
            raise ConfigurationError(f"stage names must differ; got {', '.join(names)}")

    def owner(self, topic: str) -> int:
        """The rank of the stage that owns `topic` (a valid name)."""
        rank = self._owners.get(topic)
        if rank is None:
            if len(self._owners) >= OWNERS_REMEMBERED_MAX:
                self._owners.clear()
            rank = self._owners[topic] = self._find_owner(topic)
        return rank

    def _find_owner(self, topic: str) -> int:
        for rank, stage in enumerate(self.stages):
            if any(matches(pattern, topic) for pattern in stage.topics):
                return rank
        return self._hashed("topic", topic)

    def registrar(self, subscription: str) -> int:
        """The rank of the stage that keeps the subscription with this id."""
        return self._hashed("subscription", subscription)

    def _hashed(self, kind: str, key: str) -> int:
        if len(self.stages) == 1:
            return 0
        scores = [blake2b(f"{kind}\0{stage.name}\0{key}".encode(), digest_size=8).digest() for stage in self.stages]
        return max(range(len(scores)), key=scores.__getitem__)

    @property
    def fingerprint(self) -> str:
        """A short text that two stages have in common exactly if they have the same topology."""
        parts = [f"{stage.name}\0" + "\0".join(stage.topics) for stage in self.stages]
        return blake2b("\1".join(parts).encode(), digest_size=12).hexdigest()

    def dump(self) -> list[list[Any]]:
        """The topology as plain data, for journals and greetings."""
        return [[stage.name, list(stage.topics)] for stage in self.stages]

    @classmethod
    def load(cls, data: Iterable[Iterable[Any]]) -> Topology:
        """The topology that `dump` wrote."""
        return cls(stages=tuple(StageSpec(name, tuple(topics)) for name, topics in data))

    def check_same(self, other_fingerprint: str, who: str) -> None:
        """Raise unless `who` has the same topology."""
        if other_fingerprint != self.fingerprint:
            raise TopologyMismatch(
                f"{who} has another topology (fingerprint {other_fingerprint}, here {self.fingerprint}): the stages, their "
                "order and their topic patterns must be the same at every stage; compare the two configuration files"
            )

    def check_still_owned(self, rank: int, before: Topology, topics: Iterable[str]) -> None:
        """Raise if a stage that used to run under `before` would lose one of its `topics` now, or its place on the line."""
        old_line = [stage.name for stage in before.stages]
        new_line = [stage.name for stage in self.stages]
        if old_line != new_line:
            raise TopologyMismatch(
                f"the journal of stage {old_line[rank]!r} was written on the line {' > '.join(old_line)}, but the "
                f"configuration now says {' > '.join(new_line)}: put the stages back into that order"
            )
        for topic in topics:
            owner = self.owner(topic)
            if owner != rank:
                raise TopologyMismatch(
                    f"the journal of stage {new_line[rank]!r} holds the numbers of topic {topic!r}, but the configuration now "
                    f"gives it to stage {new_line[owner]!r}, where it would start again at 1: give {topic!r} back to "
                    f"{new_line[rank]!r} by a pattern"
                )
