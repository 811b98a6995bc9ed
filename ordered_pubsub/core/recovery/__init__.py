"""Who asks whom for what the broker did not bring.

`missing` is the subscriber's part, `hosting` that of its home stage for all its clients, `owner_log` that of the owner, who
answers from the log.
"""
