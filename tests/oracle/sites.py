"""Sites: ``(batch, *coordinate) -> float64[C]``, the form every reference works on."""

import numpy as np

from oracle.rows import PAD


class Sites(dict[tuple[int, ...], np.ndarray]):
    """The dictionary, and what an empty one cannot tell.

    Attributes:
      ndim: spatial axes, D.
      channels: C.
    """

    def __init__(self, entries, ndim, channels):
        super().__init__(entries)
        self.ndim, self.channels = ndim, channels


def make_sites(rows, features, reduction="mean"):
    """Sites from rows ``int[N, 1 + D]`` in any order; duplicates merge, padding is left out."""
    groups = {}
    for row, feature in zip(rows.tolist(), np.asarray(features, np.float64), strict=True):
        if row[0] != PAD:
            groups.setdefault(tuple(row), []).append(feature)
    merge = {
        "mean": lambda group: sum(group) / len(group),
        "sum": sum,
        "max": lambda group: np.max(group, axis=0),
        "min": lambda group: np.min(group, axis=0),
        "first": lambda group: group[0],
    }[reduction]
    merged = {site: merge(group) for site, group in groups.items()}
    return Sites(merged, rows.shape[1] - 1, features.shape[1])


def rows_of(sites, width):
    """Canonical ``(rows int[N, width], features float64[N, C] or None)``."""
    ordered = sorted(sites)
    rows = np.asarray(ordered, np.int64).reshape(-1, width)
    return rows, np.asarray([sites[site] for site in ordered])
