"""The home stage of a client: `home` says what is asked of it, `network` keeps a connection to one, `talk` is one connection."""
