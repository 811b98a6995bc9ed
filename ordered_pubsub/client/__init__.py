"""The client: publications, subscriptions, and the asyncio shell around the order's state machines.

`client` is what users hold. Below it: `engine` drives the session with the home stage, `publisher` the way of an event out,
`reception` its way in, `subscription` its way to the application. `frames` and `serialization` say what is in the bytes,
`home` is how a stage is reached, and `connecting` puts all of it together. None of them decides anything about the order:
that is what `ordered_pubsub.core` is for.
"""
