"""Draw points into an image: find the nearest point at each pixel, and shade it by depth.

The point that a pixel shows is found once. Pictures of truth, prediction and error from one
viewpoint then differ only in the colors of these points. This takes a fraction of the time of
scatter plots, and shapes get an outline where the depth jumps.
"""

from dataclasses import dataclass

import numpy as np

# Number of fine pixels per pixel in each direction; their colors are averaged.
FINE = 2
# Radii of points, in fine pixels. A point of a single fine pixel would vanish in the averaging.
SMALLEST, LARGEST = 1, 9
# How far the farthest points of a perspective view fade into the background.
HAZE = 0.3


@dataclass(frozen=True)
class Raster:
    """A rasterized view of M points, without colors, at ``FINE`` times the picture's resolution.

    Attributes:
      owner: [H, W] int32, the index of the point that a pixel shows; -1 is background.
      shade: [H, W] float32, brightness factor in (0, 1].
      haze: [H, W] float32, share of the background's color, in [0, 1).
    """

    owner: np.ndarray
    shade: np.ndarray
    haze: np.ndarray

    def paint(self, colors: np.ndarray, background: np.ndarray) -> np.ndarray:
        """Return the picture with the given colors, [H / FINE, W / FINE, 3] uint8.

        ``colors`` are the colors of the M points, [M, 3] uint8; ``background`` is uint8 [3].
        """
        background = background.astype(np.float32)
        image = np.broadcast_to(background, (*self.owner.shape, 3)).copy()
        drawn = self.owner >= 0
        haze = self.haze[drawn][:, None]
        lit = colors[self.owner[drawn]] * self.shade[drawn][:, None]
        image[drawn] = lit * (1 - haze) + background * haze
        coarse = np.zeros((image.shape[0] // FINE, image.shape[1] // FINE, 3), np.float32)
        for dy in range(FINE):
            for dx in range(FINE):
                coarse += image[dy::FINE, dx::FINE]
        return (coarse / FINE**2 + 0.5).astype(np.uint8)


def rasterize(
    plane: np.ndarray,
    depth: np.ndarray,
    width: int,
    height: int,
    center: np.ndarray,
    scale: float,
    *,
    perspective: bool,
) -> Raster:
    """Rasterize projected points as discs, where near discs cover far discs.

    Args:
      plane: [M, 2], image plane coordinates: meters to the right and up.
      depth: [M], larger for points farther from the viewer.
      width, height: size of the picture in pixels.
      center: [2], position in the plane at the middle of the picture.
      scale: pixels per meter.
      perspective: whether near points are drawn larger and far points paler.
    """
    width, height = width * FINE, height * FINE
    owner = np.full(height * width, -1, np.int32)
    column = np.floor((plane[:, 0] - center[0]) * (scale * FINE) + width / 2).astype(np.int64)
    line = np.floor(height / 2 - (plane[:, 1] - center[1]) * (scale * FINE)).astype(np.int64)
    seen = (column >= 0) & (column < width) & (line >= 0) & (line < height)
    order = np.flatnonzero(seen)
    order = order[np.argsort(-depth[order], kind="stable")]
    # One point per pixel is enough, because the nearest one covers the others.
    owner[line[order] * width + column[order]] = order
    order = order[owner[line[order] * width + column[order]] == order]
    column, line = column[order], line[order]

    radius = _radii(column, line, depth[order] if perspective else None, width, height)
    # Radii shrink with depth, so from small to large is from back to front; where an index
    # comes twice in one assignment, NumPy keeps the last, which is the nearest.
    for size in np.unique(radius):
        chosen = np.flatnonzero(radius == size)
        reach = int(size)
        dy, dx = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        disc = dy**2 + dx**2 <= (reach + 0.35) ** 2
        x = np.clip(column[chosen, None] + dx[disc], 0, width - 1)
        y = np.clip(line[chosen, None] + dy[disc], 0, height - 1)
        owner[(y * width + x).ravel()] = np.repeat(order[chosen], disc.sum())
    owner = owner.reshape(height, width)
    haze = np.zeros(owner.shape, np.float32)
    drawn = owner >= 0
    if perspective and drawn.any():
        near, far = np.percentile(depth, [5, 99])
        beyond = (depth[owner[drawn]] - near) / max(far - near, 1e-9)
        haze[drawn] = HAZE * np.clip(beyond, 0, 1)
    return Raster(owner, _shading(owner, depth, scale), haze)


def _radii(
    column: np.ndarray, line: np.ndarray, depth: np.ndarray | None, width: int, height: int
) -> np.ndarray:
    """Return the radii of the discs that M points are drawn as, int64 [M] in pixels.

    Most surfaces then have no gaps between the discs. `column` and `line` are the pixels [M] of the
    points in an image of `width` and `height` pixels. If `depth` [M] is given, near points have
    larger radii; otherwise all radii are equal.
    """
    if len(column) == 0:
        return np.zeros(0, np.int64)
    cell = max(width, height) // 80 + 1
    per_row = width // cell + 1
    cells = (line // cell) * per_row + column // cell
    filled = np.count_nonzero(np.bincount(cells)) * cell**2
    radius = 0.78 * np.sqrt(filled / len(column))
    radii = np.full(len(column), radius) if depth is None else radius * np.median(depth) / depth
    return np.clip(np.ceil(radii - 0.3), SMALLEST, LARGEST).astype(np.int64)


def _shading(owner: np.ndarray, depth: np.ndarray, scale: float) -> np.ndarray:
    """Return the brightness [H, W] float32: darker where the surroundings are nearer to the viewer.

    `owner` is as in :class:`Raster`, `depth` [M] is the depth of each point in meters, and `scale`
    is pixels per meter. The method is known as "eye-dome lighting".
    """
    drawn = owner >= 0
    shade = np.ones(owner.shape, np.float32)
    if not drawn.any():
        return shade
    far = np.float32(depth.max() + 1.0)
    image = np.full(owner.shape, far, np.float32)
    image[drawn] = depth[owner[drawn]]
    height, width = owner.shape[0], owner.shape[1]
    total = np.zeros_like(image)
    for step in (FINE, 3 * FINE):
        padded = np.pad(image, step, constant_values=far)
        for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            y, x = step * (1 + dy), step * (1 + dx)
            rise = image - padded[y : y + height, x : x + width]
            # A slope of one pixel per pixel counts as one, whatever the scene's size.
            total += np.clip(rise * (scale * FINE / step), 0, 6)
    shade[drawn] = np.maximum(np.exp(-0.03 * total[drawn]), 0.5)
    return shade
