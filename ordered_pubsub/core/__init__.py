"""The protocol, sans-IO: plain state machines that take an input and the time, and return what to store and to send.

What all speak of is in modules: `topics`, `topology` and `levels` (who owns what, and keeps what), `messages` (what travels and
what is journalled), `ranges` (sets of numbers), `states` (what becomes of what), `transactions` (what may take its place
together), `checking` (what can be said at all).

Each package is one idea, and uses only those before it: `filters` (what is wanted at all), `order` (what a timestamp contains),
`log` (what owners keep), `trust` (which events are genuine), `liveness` (who is not heard of any more), `recovery` (who asks whom
for what was lost), `subscriber` (one subscription's events), `client` (one client, all together), `stage` (one stage, all
together). Modules whose name begins with _ are nobody's interface but their package's.

Nothing here knows of sockets, threads, event loops, files, clocks or chance.
"""
