"""Algorithms for depthwise weights ``[K, C]``: one filter of K taps for each of C channels."""
