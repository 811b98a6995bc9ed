"""What tests of several modules use: to wait, to look at what came, to count the work, and parts that fail at will."""
