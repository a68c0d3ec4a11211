"""Algorithms for weights with one filter per channel."""
