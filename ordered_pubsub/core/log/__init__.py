"""What owners keep of their topics.

`shelf` is what the owner's log is: events and their timestamps, on disk or in memory (`memory_shelf`), which `writer` writes and
`reader` reads; `retention` says what it may forget, `floors` up to where nobody needs anything any more. Who reads much of
several logs asks what `questions` has, and is answered by `answering`; `range_reader` puts a range of them into the one order,
`cuts` finds where one may end.
"""
