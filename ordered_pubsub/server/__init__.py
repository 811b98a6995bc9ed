"""The stage as a process: connections of clients, links to other stages, the store, who may do what, health and metrics."""
