"""The client: publications, subscriptions, and the asyncio shell around the order's state machines.

`client` is what users hold. Below it: `engine` drives the session with the home stage, `publisher` the way of an event out,
`reception` its way in, `intake` and `subscription` its way to the application. `frames` and `serialization` say what is in
the bytes, and `home` is how a stage is reached. None of them decides anything about the order: that is what
`ordered_pubsub.core` is for. And none knows of stages: `ordered_pubsub.connecting` puts client and stage together.
"""
