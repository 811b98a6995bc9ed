"""Who comes in: `admission` of new connections, `access` (identities and rights), `tls`, `clients` (one connected client),
`names` and `claims` (who has a name that only one may have).
"""
