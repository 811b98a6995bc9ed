"""What owners keep of their topics.

`log` is the owner's log: events and their timestamps, on a shelf that is on disk or in memory (`memory_shelf`); `retention` says
what it may forget, `floors` up to where nobody needs anything any more.
"""
