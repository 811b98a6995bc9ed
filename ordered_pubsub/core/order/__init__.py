"""What must be ordered against what, and where a change of a subscription has its place.

`registrar` begins changes, one at a time for each subscription, of which `registered` is what it knows, and `reserving` what a
transaction may do to several; `clocks` counts what was numbered (the entries of a timestamp);
`groups` says which entries a timestamp has: those of topics that somebody holds together.
"""
