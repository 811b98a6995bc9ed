"""What owners keep of their topics.

`log` is the owner's log: events and their timestamps, on a shelf that is on disk or in memory (`memory_shelf`); `retention` says
what it may forget, `floors` up to where nobody needs anything any more. Who reads much of several logs says what `reading` has,
and is answered by `answering`; `range_reader` puts a range of them into the one order, `cuts` finds where one may end.
"""
