"""Targets and losses of anchor-based detectors in NumPy, box by box, from their definitions."""

import numpy as np


def outline(box):
    """x and y of the lower and the upper corner, of a box turned to the nearer axis."""
    turn = np.abs(box[..., 6] - np.floor(box[..., 6] / box.dtype.type(np.pi) + 0.5) * np.pi)
    along = turn < np.pi / 4
    x = np.where(along, box[..., 3], box[..., 4])
    y = np.where(along, box[..., 4], box[..., 3])
    return [box[..., 0] - x / 2, box[..., 1] - y / 2, box[..., 0] + x / 2, box[..., 1] + y / 2]


def overlap(a, b):
    """IoU of outlines, in the dtype of the boxes."""
    a, b = outline(a), outline(b)
    wide = np.maximum(np.minimum(a[2], b[2]) - np.maximum(a[0], b[0]), 0)
    deep = np.maximum(np.minimum(a[3], b[3]) - np.maximum(a[1], b[1]), 0)
    shared = wide * deep
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (a, b)]
    return shared / (areas[0] + areas[1] - shared)


def targets(boxes, classes, places, anchors, bins, offset):
    """``(classes, codes, directions)`` of anchors ``places [N, 7]``, class by class."""
    kinds, codes = np.full(len(places), -1), np.zeros((len(places), 7))
    directions = np.zeros(len(places), int)
    per_cell = [name for name, anchor in enumerate(anchors) for _ in anchor.yaws]
    own_class = np.tile(per_cell, len(places) // len(per_cell))
    for name, anchor in enumerate(anchors):
        mine, theirs = np.flatnonzero(own_class == name), np.flatnonzero(classes == name)
        if not len(theirs):
            continue
        iou = np.stack([overlap(places[mine], boxes[row]) for row in theirs], axis=1)
        for i, row in enumerate(mine):
            best = iou[i].argmax()
            chosen = any(iou[i, j] == iou[:, j].max() > 0 for j in range(len(theirs)))
            if not chosen and iou[i, best] < anchor.matched:
                kinds[row] = -1 if iou[i, best] < anchor.unmatched else -2
                continue
            box, place = boxes[theirs[best]].astype(float), places[row].astype(float)
            kinds[row] = name
            diagonal = np.hypot(place[3], place[4])
            codes[row, :3] = (box[:3] - place[:3]) / [diagonal, diagonal, place[5]]
            codes[row, 3:6] = np.log(box[3:6] / place[3:6])
            codes[row, 6] = box[6] - place[6]
            directions[row] = int((box[6] - offset) % (2 * np.pi) // (2 * np.pi / bins))
    return kinds, codes, directions


def losses(logits, codes, directions, wanted, alpha=0.25, gamma=2, beta=1 / 9):
    """Losses of classes, boxes and directions; ``wanted`` as of :func:`targets`."""
    kinds, right_codes, right_bins = wanted
    number = max((kinds >= 0).sum(), 1)
    total = np.zeros(3)
    for row in np.flatnonzero(kinds >= -1):
        for name, x in enumerate(logits[row]):
            p = 1 / (1 + np.exp(-x))
            if name == kinds[row]:
                total[0] -= alpha * (1 - p) ** gamma * np.log(p)
            else:
                total[0] -= (1 - alpha) * p**gamma * np.log(1 - p)
    for row in np.flatnonzero(kinds >= 0):
        away = codes[row] - right_codes[row]
        away[6] = np.sin(away[6])
        for x in np.abs(away):
            total[1] += 0.5 * x * x / beta if x < beta else x - 0.5 * beta
        chances = np.exp(directions[row]) / np.exp(directions[row]).sum()
        total[2] -= np.log(chances[right_bins[row]])
    return total / number
