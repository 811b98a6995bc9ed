"""Tests of stages as servers, and of what is said on their connections."""
