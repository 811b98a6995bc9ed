"""The way of an event in: `reception` (what the broker brings), `intake` (to one subscription), `handling` (to the application's
code).
"""
