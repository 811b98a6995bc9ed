"""The stage as a process.

`serving` runs the stages of a configuration, `server` one stage, `monitoring` answers for its health and metrics. Below it:
`doors` (who comes in, as whom, and what he may), `stage` (the loop around the driver, and who reads its logs), `links` (to
other stages), `store` (what is on disk).
"""
