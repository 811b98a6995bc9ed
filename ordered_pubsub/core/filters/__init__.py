"""Content filters: which events are wanted, by their payload and headers.

    where="symbol = 'ACME' and price > 100 and venue in ('X', 'Y')"

A filter is a conjunction of predicates, and of each field it keeps the *set* of values that they let through. A function
would be enough for matching; sets can also be compared: do two filters have something in common (`overlaps`), does one
contain another (`covers`), and what do many of them want together (`covering`)? A filter takes events out, and never changes
the order of those that stay.

Read in this order: `_values` (the sets), `_tokens` and `_grammar` (the text), `_conditions` (what it comes to, field by field),
`_writing` (and back to a text), `_matching` (compiled), `filter` (what all others use).
"""

from ordered_pubsub.core.filters._tokens import TEXT_LENGTH_MAX
from ordered_pubsub.core.filters.filter import AnyOf, Filter, covering

__all__ = ["TEXT_LENGTH_MAX", "AnyOf", "Filter", "covering"]
