"""The protocol, sans-IO: plain state machines that take an input and the time, and return what to store and to send.

Read in this order: `topics` and `topology` (who owns what), `messages` (what travels), `groups` and `clocks` (what a
timestamp contains), `requests` and `registrar` (how operations begin), `links` (FIFO between stages), `stage` (the
journey), `changes`, `buffer`, `delivery`, `best_effort` and `vector` (the subscriber), `session` (the client), `history`,
`journal` and `driver`.
Nothing here knows of sockets, threads, event loops, files, clocks or chance.
"""
