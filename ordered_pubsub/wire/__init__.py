"""Bytes and messages: the version and form of what leaves the process."""
