"""Who has not been heard of for long, and what becomes of it then.

`times` says how long is long; `lease` until when a publisher may use its numbers, `voids` which of them will never have an event,
`sealing` who is asked before that is decided; `lifeline` when a subscription stops by itself, `expiry` who is given up.
"""
