"""Adapters to event notification services; each is found by its URL's scheme, as anybody else's would be."""
