"""The client: publications, subscriptions, and the asyncio shell around `core.client.machine`.

`client` and `subscription` are what users hold, `event` what they are given; `settings` is what they may choose,
`serialization` what payloads mean. `engine` drives the machine. Below it, by what flows: `outgoing` (events on their way to
the broker), `incoming` (from there to the application), `home` (the connection to a stage). None of it decides anything about
the order, and none knows of stages: `ordered_pubsub.connecting` puts client and stage together.
"""
