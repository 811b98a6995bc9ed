"""`mqtt://` and `mqtts://`: events over an MQTT 5 broker, with paho-mqtt on the running event loop.

    mqtt://user:password@broker:1883?qos=1&keepalive_s=60&session_s=300

Theory of operation
===================
An event is a PUBLISH whose payload is the application's own. Its content type is MQTT's, its other headers are user
properties, and its stamp is the correlation data: plain clients read and write the same topics.

One connection per client, with a session of its own at the broker that is to outlive breaks of `session_s`. When the
connection breaks, everything that was being published fails, to be handed over again, and the link is made again after a
moment that grows up to `RETRY_MOST_S`. If the broker has forgotten the session, the topics are subscribed to again.

What can be relied on, and why:

- `qos=0`: nobody counts, so frames are lost when the connection breaks, or when a queue is full.
- `qos=1`, the default: the broker confirms each message, and so do we when `on_frames` has returned. After a break, what was
  not confirmed comes again: duplicates.
- `qos=2`: the broker repeats nothing. What `publish` raised for, and is handed over again, is another message to it; so are
  the messages that it forgets in a crash and that are published again.
- A broker keeps the messages of one publisher on one topic in order, and we have a single connection: nothing is reordered.
  That needs all publishers of a topic to have the same QoS.
- What is kept while a subscriber is away is what the broker keeps: Mosquitto forgets everything when it is killed (even with
  `persistence true`, all since the last `autosave_interval`), and drops what exceeds `max_queued_messages`, 1000 if nothing else
  is configured, without telling anybody. Set it to 0 where no event may be lost.
- MQTT does not slow down publishers: a subscriber that does not keep up fills the broker's queues, not this process.

Costs, measured with Mosquitto 2.0 and 200 bytes, are in `docs/adapters.md`.
"""
