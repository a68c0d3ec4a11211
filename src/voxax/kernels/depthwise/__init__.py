"""Algorithms for one filter per channel."""
