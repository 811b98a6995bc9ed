"""The protocol, sans-IO: plain state machines that take an input and the time, and return what to store and to send.

Read in this order: `topics`, `topology` and `levels` (who owns what, and keeps what), `messages` (what travels), `groups` and
`clocks` (what a timestamp contains), `requests`, `registrar` and `quotas` (how operations begin, and how many), `naming`
(whose names are), `checking` (what can be said at all), `links` (FIFO between stages), `stage` (the journey), `turns` (who is
served when), `authenticity`, `keys` and `inspection` (which events are genuine), `changes`, `buffer`, `delivery`,
`best_effort` and `vector` (the subscriber), `session`, `outbox`, `holding`, `locating`, `client_subscription` and
`client_machine` (the client: its requests, what it has published, its topics at the ENS, where they were, each subscription, and
all together).

Then what sees to it that each event comes: `log` and `memory_shelf` (what owners keep), `ranges` and `curiosity`
(what is missed), `missing`, `hosting` and `pubends` (who asks whom for it), `lease`, `batches`, `voids`
and `sealing` (numbers that never have an event), `history`, `past`, `subend` and `subscriber` (the subscriber's end of the logs,
and what it says), `acknowledging`, `floors`, `retention`, `resting`, `expiry`, `starving`, `lifeline` and `times` (what may be
forgotten, who stops before, and when), `behind` (whether a stage has forgotten what clients know), `filters` (what is wanted at
all).

At last `journal`, `sharing` and `driver` (what is on disk before anything is said, and how it is read).
Nothing here knows of sockets, threads, event loops, files, clocks or chance.
"""
