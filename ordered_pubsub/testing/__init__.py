"""For those who test: the simulation of a whole system on virtual time, its checkers, and later the conformance suite.

`python -m ordered_pubsub.testing.simulate --seed 7` repeats one world and prints its trace (docs/simulation.md).
"""
