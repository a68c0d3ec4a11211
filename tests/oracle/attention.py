"""Attention of single rows, one after the other, in float64."""

import numpy as np

from oracle.coordinates import hilbert_transpose, interleave


def attend(query, keys, values, heads, scale=None, bias=None):
    """One query ``[C]`` over ``keys, values [M, C]``; ``bias [H, M]``. Zero without keys."""
    width = len(query) // heads
    out = np.zeros(len(query))
    for head in range(heads):
        mine = slice(head * width, (head + 1) * width)
        if not len(keys):
            continue
        logits = np.array([np.dot(query[mine], key[mine]) for key in keys])
        logits = logits * (width**-0.5 if scale is None else scale)
        logits = logits + (0 if bias is None else bias[head])
        weights = np.exp(logits - logits.max())
        out[mine] = (weights[:, None] / weights.sum() * values[:, mine]).sum(0)
    return out


def attend_lists(features, coords, lists, heads, scale=None, table=None):
    """Each row ``i`` attends to the rows ``lists[i]``, with repetition; ``features [N, 3C]``."""
    query, key, value = np.split(np.asarray(features, np.float64), 3, axis=1)
    rows = []
    for row, keys in enumerate(lists):
        bias = None
        if table is not None:
            reach = table.shape[1] // 2
            bias = np.zeros((heads, len(keys)))
            for place, other in enumerate(keys):
                offset = np.clip(coords[row][1:] - coords[other][1:], -reach, reach) + reach
                bias[:, place] = sum(table[axis, at] for axis, at in enumerate(offset))
        rows.append(attend(query[row], key[keys], value[keys], heads, scale, bias))
    return np.array(rows).reshape(len(lists), query.shape[1])


def serial_key(cell, low, bits, order):
    """Place of a cell on a curve of ``bits`` bits from the corner ``low``."""
    numbers = [int(c - corner) for c, corner in zip(cell, low, strict=True)]
    if order.endswith("trans"):
        numbers[:2] = numbers[1::-1]
    return interleave(
        hilbert_transpose(numbers, bits) if order.startswith("hilbert") else numbers, bits
    )


def patch_lists(coords, length, order, fill):
    """For each row the rows of its patch, with those that fill it up."""
    lists = [None] * len(coords)
    for scene in sorted({row[0] for row in coords.tolist()}):
        members = [i for i, row in enumerate(coords) if row[0] == scene]
        cells = coords[members, 1:]
        low, bits = cells.min(0), max(int((cells.max(0) - cells.min(0)).max()).bit_length(), 1)
        members.sort(key=lambda i: serial_key(coords[i, 1:], low, bits, order))
        cut = [members[i : i + length] for i in range(0, len(members), length)]
        last, missing = cut[-1], length - len(cut[-1])
        if len(cut) > 1 and fill != "short":
            cut[-1] = last + cut[-2][len(last) :]
        elif len(cut) == 1 and fill == "cycle":
            cut[-1] = (last * (missing // len(last) + 2))[:length]
        for index, patch in enumerate(cut):
            for row in members[index * length : (index + 1) * length]:
                lists[row] = patch
    return lists


def group_lists(keys):
    """For each row all rows with the same key."""
    return [[j for j, other in enumerate(keys) if other == key] for key in keys]
