"""What this library says of a mistake, for Spark, which shows its users the way that an error took as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ordered_pubsub.errors import OrderedPubSubError

_Method = TypeVar("_Method", bound=Callable[..., Any])


def plainly(method: _Method) -> _Method:
    """Let its errors come without the way that they took through this library."""

    @wraps(method)
    def called(*given: Any, **named: Any) -> Any:
        try:
            return method(*given, **named)
        except OrderedPubSubError as error:
            plain = error
        raise plain.with_traceback(None) from None

    return cast(_Method, called)
