"""The published ordering algorithm, kept only to be caught: it stops where our core must not."""
