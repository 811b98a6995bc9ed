"""What went wrong, in words that say what to do: MQTT's reason codes, and the errors of sockets and TLS."""

from __future__ import annotations

import ssl

from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ordered_pubsub.errors import AdapterError, OrderedPubSubError
from ordered_pubsub_adapters.urls import BrokerUrl

_LOGIN = "; check user and password (password_file) in the URL"
_OF_CONNECTING = {
    "Bad user name or password": _LOGIN,
    "Not authorized": f"{_LOGIN}, and that the broker lets this user in",
    "Unsupported protocol version": "; it must speak MQTT 5",
}
_OF_PUBLISHING = {
    "Not authorized": "; allow this user to publish there",
    "Quota exceeded": "; it holds too much already, or this client may have no more",
    "Packet too large": "; publish smaller events, or raise its limit",
}


def said(reason: ReasonCode, more: Properties | None) -> str:
    """What the broker gave as its reason."""
    text = getattr(more, "ReasonString", None)
    return f"{reason} ({text})" if text else str(reason)


def not_let_in(reason: ReasonCode, more: Properties | None) -> str:
    """Of a CONNACK that is a refusal."""
    return f"the broker does not let us in: {said(reason, more)}{_OF_CONNECTING.get(str(reason), '')}"


def not_taken(topic: str, reason: ReasonCode) -> str:
    """Of a PUBACK, PUBREC or PUBCOMP that is a refusal."""
    return f"the broker refused an event on {topic!r}: {reason}{_OF_PUBLISHING.get(str(reason), '')}"


def not_granted(name: str, reason: ReasonCode, qos: int) -> str | None:
    """Of the part of a SUBACK for one topic; None if there is no reason to complain."""
    if reason.is_failure:
        return f"the broker refused the subscription to {name!r}: {reason}; does it let this user subscribe there?"
    if reason.value < qos:
        return (
            f"the broker grants QoS {reason.value} on {name!r}, and QoS {qos} was asked for: take ?qos={reason.value}, or allow "
            "more there"
        )
    return None


def not_connected(error: BaseException, host: str, port: int, url: BrokerUrl) -> OrderedPubSubError:
    """Of an attempt that did not get as far as MQTT."""
    if isinstance(error, OrderedPubSubError):
        return error
    what = f"{url.shown}: cannot connect to {host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return AdapterError(
            f"{what}: its certificate does not convince: {error.verify_message}; name its authority with ca=FILE"
        )
    if isinstance(error, ssl.SSLError) or (url.is_encrypted and isinstance(error, ConnectionResetError)):
        return AdapterError(f"{what}: TLS failed: {error}; is the port one for TLS?")
    return AdapterError(f"{what}: {error}; is the broker running, and the address right?")
