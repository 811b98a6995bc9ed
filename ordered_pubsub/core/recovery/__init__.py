"""Who asks whom for what the broker did not bring.

`missing` is the subscriber's part; its home stage, for all its clients, knows how far they are (`hosting`) and what they miss
(`curiosity`), and keeps some of what it was `told`; `owner_log` is the part of the owner, who answers from the log.
"""
