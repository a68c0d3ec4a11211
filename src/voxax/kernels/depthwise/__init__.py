"""Algorithms for depthwise weights ``[K, C]``, which have one filter per channel."""
