"""A hub that passes frames on, and the adapter by which ordered_pubsub reaches it."""
