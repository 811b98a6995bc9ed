"""Transactions of the blocking client."""

from __future__ import annotations

import pytest

from helpers.threads import Beside, take, until
from ordered_pubsub import errors, sync


def test_a_transaction_is_written_down_and_committed(client: sync.Client, url: str) -> None:
    with sync.connect(url, name="agent-1") as agent:
        subscription = agent.subscribe(name="work", empty=True)
        tx = client.static_transaction()
        tx.at("agent-1").subscribe("work", "jobs")
        tx.publish("jobs", 7)
        (receipt,) = tx.commit()

        (event,) = take(subscription, 1)
        assert (event.data, event.number, event.tx) == (7, receipt.number, tx.id)
        again = client.static_transaction()
        again.at("agent-1").subscribe("work", "jobs")
        with pytest.raises(errors.TransactionConflict, match="holds 'jobs' already"):
            again.commit()


def test_what_others_publish_waits_for_room_while_one_commits(url: str) -> None:
    with sync.connect(url, pipeline_events_max=20) as client, sync.connect(url, name="agent-1") as agent:
        agent.subscribe("a", name="work")

        def publish() -> None:
            for _ in range(20):
                client.publish_many("a", range(15))

        publishing = [Beside(publish) for _ in range(2)]
        for _ in range(20):
            tx = client.static_transaction(strict=False)
            tx.at("agent-1").subscribe("work", "b")
            tx.publish_many("b", range(10))
            assert len(tx.commit()) == 10
        for one in publishing:
            one.outcome()
        until(lambda: client.status()["unfinished"] == 0)
