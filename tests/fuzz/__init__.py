"""Fuzzing: whatever comes, there is an answer, or a documented error, and the stage goes on serving others.

`mutation` makes inputs out of good ones, `targets` says what is fed with them, `run` does it for as long as it is told:

    python -m fuzz.run --target peer-frames --seconds 600
"""
