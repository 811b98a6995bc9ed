"""Measures this library against the plain client library, on the same broker and in the same run.

A *set-up* is a broker and the way in which it is used; a *variant* is the plain client, or this library with some settings. Each
variant has processes of its own, one that publishes and two that subscribe, which all live until the set-up has been measured:

    rounds ──── lines of JSON ────> publisher, subscriber, subscriber   (of each variant; `worker`)
       │                                    │        ^
       │ reads their processor time         v        │
       └──────────────────────────────>  broker,  stage (`ordered-pubsub serve`, one for each durability)

The variants take turns, round by round, so that what disturbs the machine disturbs all of them, and ratios compare neighbours.
`docs/benchmarks.md` says how to read the table, and what was done to be fair.
"""
