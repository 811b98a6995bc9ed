"""Reading much of the past, without an event loop: ranges of the logs, side by side, in the one order.

`access` says how stages are reached, `connection` is a blocking line to one, `stages` is all of them together: it finds topics
and their owners, and takes cuts and bounds; `merging` reads. What is asked for, and what comes of the answers, decides the core
(`core.log.cuts`, `core.log.range_reader`). What is here knows nothing of Spark, and keeps nothing open between two ranges.
"""
