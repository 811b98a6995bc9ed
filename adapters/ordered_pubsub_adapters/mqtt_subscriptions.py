"""What a session is subscribed to at the broker, and the changes of that which the broker has not confirmed yet.

A topic that somebody leaves while the connection is broken is left at the broker when it is back, if the broker still has the
session; until then, what comes of it is ignored. If it has forgotten the session, it is told everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ordered_pubsub.errors import AdapterError
from ordered_pubsub_adapters.mqtt_packets import PacketClient
from ordered_pubsub_adapters.mqtt_reasons import not_granted
from ordered_pubsub_adapters.names import NameTable
from ordered_pubsub_adapters.urls import BrokerUrl

TOPICS_PER_PACKET = 100
TOPICS_ROOM = 20
"""What a SUBSCRIBE has besides its topics, in bytes."""


@attrs.define(eq=False)
class Subscriptions:
    """The topics of one session."""

    client: PacketClient
    names: NameTable
    url: BrokerUrl
    qos: int
    packet_bytes_max: int
    _leaving: dict[str, bool] = attrs.field(factory=dict)
    """names that the broker may still have subscriptions to, and that nobody wants"""
    _answers: dict[int, asyncio.Future[list[ReasonCode]]] = attrs.field(factory=dict)
    """that are waited for, by the identifier of the question"""

    def __attrs_post_init__(self) -> None:
        self.client.on_subscribe = self._on_answer
        self.client.on_unsubscribe = self._on_answer

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe, and return when the broker has agreed to all of it."""
        names = [self.names.subscribe(topic) for topic in topics]
        for name in names:
            self._leaving.pop(name, None)
        try:
            await self._subscribe(names)
        except BaseException:
            self.forget(topics)
            raise

    def forget(self, topics: Sequence[str]) -> None:
        """Ignore what comes of these topics, until `leave` has told the broker."""
        for topic in topics:
            self._leaving[self.names.unsubscribe(topic)] = True

    async def leave(self) -> None:
        """Unsubscribe from what nobody wants, and return when the broker has confirmed it."""
        for chunk in self._chunks(list(self._leaving)):
            await self._answer(*self.client.unsubscribe(chunk))
            for name in chunk:
                self._leaving.pop(name, None)

    async def renew(self) -> None:
        """The broker has forgotten everything: subscribe to all of it again."""
        self._leaving.clear()
        await self._subscribe(self.names.subscribed)

    def fail(self, reason: str) -> None:
        """The connection is gone: nothing will be answered."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AdapterError(reason))

    async def _subscribe(self, names: Sequence[str]) -> None:
        options = SubscribeOptions(qos=self.qos, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        for chunk in self._chunks(names):
            reasons = await self._answer(*self.client.subscribe([(name, options) for name in chunk]))
            for name, reason in zip(chunk, reasons, strict=True):
                complaint = not_granted(name, reason, self.qos)
                if complaint is not None:
                    raise AdapterError(f"{self.url.shown}: {complaint}")

    def _chunks(self, names: Sequence[str]) -> Iterator[list[str]]:
        """As many names at once as fit in a packet."""
        room = self.packet_bytes_max - TOPICS_ROOM
        chunk: list[str] = []
        size = 0
        for name in names:
            size += len(name.encode()) + 3
            if chunk and (len(chunk) >= TOPICS_PER_PACKET or size > room):
                yield chunk
                chunk, size = [], len(name.encode()) + 3
            chunk.append(name)
        if chunk:
            yield chunk

    async def _answer(self, code: MQTTErrorCode, mid: int | None) -> list[ReasonCode]:
        """The reason codes of a SUBACK or UNSUBACK."""
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise AdapterError(f"{self.url.shown}: not connected ({code.name})")
        answer: asyncio.Future[list[ReasonCode]] = asyncio.get_running_loop().create_future()
        self._answers[mid] = answer
        try:
            await asyncio.wait((answer,), timeout=self.url.connect_timeout_s)
            if not answer.done():
                raise AdapterError(
                    f"{self.url.shown}: the broker did not confirm a change of subscriptions within "
                    f"{self.url.connect_timeout_s:g} s (connect_timeout_s); try again, or give it longer"
                )
            return answer.result()
        finally:
            del self._answers[mid]

    def _on_answer(self, client: Any, data: Any, mid: int, reasons: list[ReasonCode], more: Properties | None) -> None:
        answer = self._answers.get(mid)
        if answer is not None and not answer.done():
            answer.set_result(reasons)
