"""States of a thing, and what makes one of another: tables that the code goes by, and from which docs/states.md is drawn."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class States:
    """All states of one kind of things. Those from which nothing leads on are the last ones."""

    of: str
    """what has them, for people"""
    table: Mapping[str, Mapping[str, str]]
    """state → what it may become → when"""

    def check(self, before: str, after: str) -> None:
        """Raise an `AssertionError` if the one does not become the other."""
        assert after in self.table[before], f"{self.of} that is {before} does not become {after}"

    def reaches(self, before: str, after: str) -> bool:
        """Whether the one may become the other, in any number of steps; none is one of them."""
        found, agenda = {before: True}, [before]
        for state in agenda:  # grows while it runs
            agenda += [following for following in self.table[state] if following not in found]
            found.update(dict.fromkeys(self.table[state], True))
        return after in found
