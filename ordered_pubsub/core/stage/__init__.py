"""One stage: the journey of operations, and what of it is on disk before anything is said.

`stage` is the state machine: `state` is what it must not forget, `effects` what is to be done about its inputs, `gatekeeper` what
it refuses. `driver` has the order of log, journal, sync and send, on a `storage`, with `snapshots`; `journal` says what is
written, `sharing` how it is read; `turns` who is served when, `quotas` how much of a stage one identity may take up, `naming`
whose names are.
"""
