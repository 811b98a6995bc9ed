"""Transactions of a blocking client: written down, then committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ordered_pubsub.client.event import Receipt
from ordered_pubsub.client.transaction import Part, TransactionParts


class StaticTransaction(TransactionParts):
    """A transaction of one client; made by `Client.static_transaction`."""

    def __init__(self, commit: Callable[[list[Part]], tuple[str, list[Receipt]]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._commit = commit

    def commit(self) -> list[Receipt]:
        """Let all of it happen, at one place in the order, or nothing; return the receipts of what it has published.

        The errors are those of `ordered_pubsub.client.transaction.StaticTransaction.commit`.
        """
        self.id, receipts = self._commit(self.take())
        return receipts
