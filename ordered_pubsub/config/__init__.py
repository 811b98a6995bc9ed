"""The configuration: one TOML file, the environment over it, arguments over that.

`schema` has everything that can be configured, as typed, frozen records; `kinds` says what fits a key, `addresses` what an
address is. `reading` makes the records of a text, a file, the environment and arguments, `lines` finds the line of a key,
`checks` what does not fit together, and `advice` (with `covering`) says what is allowed and yet not wise. `files` reads tokens,
and refuses files that others may read. `dumping` shows a configuration without its secrets, and says in what two stages differ.
"""
