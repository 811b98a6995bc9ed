"""One subscription's events: what has come, what waits, whose turn it is, what was handled.

`buffer` says what all have in common, `delivery` puts into order, `best_effort` into hardly any; `vector` shows what was passed;
`subscriber_log` is the subscriber's end of the owners' logs, `subscriber` all of an ordered one with what it says,
`acknowledging` what of one with a name is in hand, handled and acknowledged; `starving` sees what the broker does not bring.
"""
