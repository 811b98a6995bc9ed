"""One client: its requests, what it has published, its topics at the broker, its subscriptions, and all together.

`machine` is the whole, which `ordered_pubsub.client` and the simulation drive; it has a `session` (requests and their answers),
an `outbox` (numbered events on their way to the broker, in `batches`), its topics at the broker (`holding`), each `subscription`
from the call to its end, and questions where topics were at a time (`locating`). Two are clients of another kind: `writer`
publishes the rows of a task, once however often the task is run; `named_reader` says how far somebody is who reads the logs.
"""
