"""Split polygons and strips into triangles, and sample points evenly from their surface."""

from collections.abc import Sequence

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud


def sample_surface(
    vertices: PointCloud,
    triangles: np.ndarray,
    options: ReadOptions = DEFAULT,
    of_triangles: PointCloud | None = None,
) -> PointCloud:
    """Sample N random points from the surface of T triangles, evenly by area.

    Args:
      vertices: the corners of the triangles. Attributes of type float, and ``rgb``, are
          interpolated over a triangle. Labels and other integers are those of the corner with the
          largest barycentric weight.
      triangles: the rows of the triangles' corners in `vertices`, integers [T, 3].
      options: ``points`` is the number N of points to sample, and ``seed`` is the random seed.
      of_triangles: a cloud of T points with attributes and labels of the triangles, or None. Its
          attributes are used if `vertices` has none of the same name, and its labels are used if
          `vertices` has no labels.

    Returns:
      N points with the attributes and labels of `vertices` and `of_triangles`, and the attributes
      ``normals`` (float32 [N, 3]) and ``face`` (int32 [N], the index of each point's triangle).
      Normals are interpolated from the vertices if the vertices have normals, otherwise they are
      perpendicular to the triangle.
    """
    points, source = options.points, vertices.source
    if len(triangles) == 0:
        raise FileFormatError(
            f"{source} has no faces: it is empty, cut short, or holds only points"
        )
    low, high = int(triangles.min()), int(triangles.max())
    if low < 0 or high >= len(vertices):
        raise FileFormatError(
            f"the faces of {source} name vertices {low}..{high}, but it has {len(vertices)}"
        )
    corners = vertices.positions[triangles]
    with np.errstate(invalid="ignore", over="ignore"):
        edge, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
        normals = np.cross(edge, other)
        doubled_area = np.linalg.norm(normals, axis=1)
    # A corner that was not measured (NaN) removes only the triangles that contain it.
    doubled_area[~np.isfinite(doubled_area)] = 0
    total = doubled_area.sum()
    if not (np.isfinite(total) and total > 0):
        raise FileFormatError(
            f"the {len(triangles)} faces of {source} have a total area of {total / 2}"
        )
    face, weights = _drawn(doubled_area, points, np.random.default_rng(options.seed))
    main = triangles[face, weights.argmax(axis=1)]
    attributes, labels = dict[str, np.ndarray](), None
    if of_triangles is not None:
        attributes |= {name: values[face] for name, values in of_triangles.attributes.items()}
        labels = None if of_triangles.labels is None else of_triangles.labels[face]
    for name, values in vertices.attributes.items():
        if name == "rgb" or values.dtype.kind == "f":
            mixed = np.einsum("nk,nk...->n...", weights, values[triangles[face]])
            attributes[name] = (np.rint(mixed) if name == "rgb" else mixed).astype(values.dtype)
        else:
            attributes[name] = values[main]
    labels = labels if vertices.labels is None else vertices.labels[main]
    flat = normals[face] / doubled_area[face, None]
    attributes["normals"] = _unit(attributes.get("normals"), flat).astype(np.float32)
    attributes["face"] = face.astype(np.int32)
    return PointCloud(np.einsum("nk,nkc->nc", weights, corners[face]), attributes, labels, source)


def _drawn(
    areas: np.ndarray, points: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw N random points on triangles, with a uniform density over their surface.

    `areas` [T] are the areas of the triangles, and `points` is N. Return the triangle of each
    point, [N], and the weights [N, 3] that average the triangle's corners to the point.
    """
    # Points are drawn one from each of `points` equal parts of the area, not independently. So
    # the number of points of every triangle is proportional to its area to within one or two.
    share = (np.arange(points) + rng.random(points)) / points
    cumulative = np.cumsum(areas) / areas.sum()
    face = np.searchsorted(cumulative, share, side="right")
    face = np.minimum(face, np.flatnonzero(areas)[-1])
    first, second = rng.random((2, points))
    # A point beyond the diagonal of the parallelogram is mirrored back into the triangle.
    beyond = first + second > 1
    first[beyond], second[beyond] = 1 - first[beyond], 1 - second[beyond]
    return face, np.stack([1 - first - second, first, second], axis=1)


def _unit(normals: np.ndarray | None, flat: np.ndarray) -> np.ndarray:
    """Return `normals` [N, 3] scaled to length 1.

    Normals that are 0 or not finite are replaced by rows of `flat` [N, 3]. If `normals` is None,
    return `flat`.
    """
    if normals is None or normals.shape != flat.shape:
        return flat
    length = np.linalg.norm(normals.astype(np.float64), axis=1, keepdims=True)
    usable = np.isfinite(length) & (length > 0)
    return np.where(usable, normals / np.where(usable, length, 1), flat)


def _corner_counts(polygons: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return the number of corners of each of P polygons, int64 [P]."""
    if isinstance(polygons, np.ndarray) and polygons.ndim == 2:
        return np.full(len(polygons), polygons.shape[1], np.int64)
    return np.array([len(polygon) for polygon in polygons], np.int64)


def fan_owners(polygons: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return, for each triangle of :func:`fan_triangles`, the index of its polygon, int64 [T].

    `polygons` is the argument of :func:`fan_triangles`.
    """
    return np.repeat(np.arange(len(polygons)), np.maximum(_corner_counts(polygons) - 2, 0))


def strip_triangles(strips: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Split triangle strips into triangles, int64 [T, 3].

    Strips are arrays [corners] of vertex rows, and the result has three vertex rows for each
    triangle. Each corner of a strip forms a triangle with the two corners before it. A negative
    number ends a strip, and the next strip begins after it. All triangles of a strip have the same
    orientation as the first triangle.
    """
    if not len(strips):
        return np.zeros((0, 3), np.int64)
    corners = np.concatenate([part for strip in strips for part in (strip, [-1])]).astype(np.int64)
    row = np.arange(len(corners))
    begin = np.maximum.accumulate(np.where(corners < 0, row + 1, 0))
    triangles = np.stack([corners[:-2], corners[1:-1], corners[2:]], axis=1)
    odd = (row - begin)[:-2] % 2 == 1
    triangles[odd] = triangles[odd][:, [1, 0, 2]]
    return triangles[(triangles >= 0).all(axis=1)]


def fan_triangles(polygons: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Split polygons into triangles around their first corner, int64 [T, 3], in polygon order.

    `polygons` are arrays [corners] of vertex rows, or one array [P, corners] for P polygons. The
    result has three vertex rows for each triangle. Polygons with fewer than 3 corners have no area
    and are left out. The result is exact for convex polygons, which scanners
    and modeling programs write.
    """
    if isinstance(polygons, np.ndarray) and polygons.ndim == 2 and polygons.shape[1] == 3:
        return polygons.astype(np.int64)
    sizes = _corner_counts(polygons)
    pieces: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for size in np.unique(sizes[sizes >= 3]):
        rows = np.flatnonzero(sizes == size)
        block = np.stack([polygons[int(row)] for row in rows]).astype(np.int64)
        for corner in range(1, size - 1):
            pieces.append(block[:, [0, corner, corner + 1]])
            owners.append(rows)
    if not pieces:
        return np.zeros((0, 3), np.int64)
    return np.concatenate(pieces)[np.argsort(np.concatenate(owners), kind="stable")]
