"""A trial: a whole system as processes, over a real broker, and a judge who has seen everything.

`system` starts stages, publishers and subscribers, kills what it is told to, and collects what they have written down;
`worker` is what a publisher or a subscriber runs; `judge` compares. To put one's own broker on trial:

    python -m ordered_pubsub.testing.trial --ens mqtt://127.0.0.1:1883 --events 20000 --kills 3
"""
