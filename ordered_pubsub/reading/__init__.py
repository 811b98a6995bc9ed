"""Reading much of the past, without an event loop: ranges of the logs, side by side, in the one order.

`access` says how stages are reached, `line` is a blocking connection to one, `stages` is all of them together: it finds topics
and their owners, takes cuts and bounds, and reads. `cuts` chooses where a range ends, and divides it; `merging` puts what the
owners have into the one order. What is here knows nothing of Spark, and keeps nothing open between two ranges.
"""
