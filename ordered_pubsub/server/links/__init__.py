"""Links between stages: `peers` keeps a connection to each, and sees that all have the same topology."""
