"""Detection metrics as plain loops over lists of dictionaries, in float64.

A scene is a list of dictionaries, whose keys are those that a metric reads. `iou` is a function of
two of them.
"""

import math


def voc_ap(truth, found, name, threshold, iou) -> float:
    """Area under the highest precision at each recall or a higher one."""
    number = sum(t["class"] == name for scene in truth for t in scene)
    guesses = [(f, s) for s, scene in enumerate(found) for f in scene if f["class"] == name]
    guesses.sort(key=lambda guess: -guess[0]["score"])
    taken, points, right = set(), [], 0
    for rank, (guess, s) in enumerate(guesses, start=1):
        candidates = [(iou(guess, t), -i, i) for i, t in enumerate(truth[s]) if t["class"] == name]
        if candidates:
            best, _, i = max(candidates)
            if best > threshold and (s, i) not in taken:
                taken.add((s, i))
                right += 1
        points.append((right / number, right / rank))
    area, before = 0.0, 0.0
    for place, (recall, _) in enumerate(points):
        highest = max(precision for _, precision in points[place:])
        area += (recall - before) * highest
        before = recall
    return area


def nuscenes_ap(truth, found, name, distance) -> float:
    return nuscenes_curve(truth, found, name, distance)[0]


def nuscenes_curve(truth, found, name, distance):
    """AP and the five errors of one class at one distance, as the development kit has them."""
    number = sum(t["class"] == name for scene in truth for t in scene)
    guesses = [(f, s) for s, scene in enumerate(found) for f in scene if f["class"] == name]
    order = sorted(range(len(guesses)), key=lambda i: (guesses[i][0]["score"], i), reverse=True)
    taken, curve, errors = set(), [], []
    right = 0
    for rank, i in enumerate(order, start=1):
        guess, s = guesses[i]
        best, mine = distance, None
        for place, t in enumerate(truth[s]):
            if t["class"] == name and (s, place) not in taken:
                away = math.dist(t["center"], guess["center"])
                if away < best:
                    best, mine = away, place
        if mine is not None:
            taken.add((s, mine))
            right += 1
            errors.append((guess["score"], _errors_of(truth[s][mine], guess, name)))
        curve.append((right / max(number, 1), right / rank, guess["score"]))
    nothing = dict.fromkeys(["translation", "scale", "orientation", "velocity", "attribute"], 1.0)
    if not errors:
        return 0.0, nothing
    recalls = [k * 0.01 for k in range(101)]  # as NumPy rounds them: many meet a step of the curve
    precision = [_line([c[0] for c in curve], [c[1] for c in curve], r) for r in recalls]
    score = [_line([c[0] for c in curve], [c[2] for c in curve], r) for r in recalls]
    ap = sum(max(p - 0.1, 0.0) for p in precision[11:]) / 90 / 0.9
    reached = max([k for k in range(101) if score[k] != 0], default=0)
    if reached < 11:
        return ap, nothing
    means = {}
    for key in nothing:
        values = [e[key] for _, e in errors]
        running = []
        for place in range(len(values)):
            known = [v for v in values[: place + 1] if not math.isnan(v)]
            running.append(sum(known) / len(known) if known else 0.0)
        if all(math.isnan(v) for v in values):
            running = [1.0] * len(values)
        rising = [s for s, _ in reversed(errors)]
        values = running[::-1]
        at = [_line(rising, values, score[k], clip=True) for k in range(11, reached + 1)]
        means[key] = sum(at) / len(at)
    return ap, means


def _errors_of(true, guess, name):
    turn = math.pi if name == "barrier" else 2 * math.pi
    away = (true["yaw"] - guess["yaw"]) % turn
    shared = math.prod(map(min, true["size"], guess["size"]))
    union = math.prod(true["size"]) + math.prod(guess["size"]) - shared
    same = float(true["attribute"] != guess["attribute"]) if true["attribute"] else math.nan
    return {
        "translation": math.dist(true["center"], guess["center"]),
        "scale": 1 - shared / union,
        "orientation": min(away, turn - away),
        "velocity": math.dist(true["velocity"], guess["velocity"]),
        "attribute": same,
    }


def _line(x, y, at, clip=False):
    """The value at `at` of lines through points with growing x; behind them 0, or the last.

    Where several points have the same x, the line leaves from the last and arrives at the first.
    """
    if at > x[-1]:
        return y[-1] if clip else 0.0
    if at <= x[0]:
        return y[max(i for i in range(len(x)) if x[i] == x[0])] if at == x[0] else y[0]
    j = max(i for i in range(len(x)) if x[i] <= at)
    if x[j] == at or j == len(x) - 1:
        return y[j]
    return y[j] + (y[j + 1] - y[j]) * (at - x[j]) / (x[j + 1] - x[j])


KITTI = {"easy": (40, 0, 0.15), "moderate": (25, 1, 0.3), "hard": (25, 2, 0.5)}


def kitti_ap(
    truth, found, name, level, needed, iou, in_image=False, recalls=40, oriented=False
) -> float:
    """KITTI's AP at 40 or 11 recalls, found box by found box and true box by true box.

    ``oriented`` has its average orientation similarity instead.
    """
    height, occlusion, truncation = KITTI[level]
    neighbor = {"Car": "Van", "Pedestrian": "Person_sitting"}.get(name)

    def tall(one):
        return one["rectangle"][3] - one["rectangle"][1]

    def kind_of_truth(t):
        if t["class"] == neighbor:
            return "ignored"
        if t["class"] != name:
            return None
        hard = t["occlusion"] > occlusion or t["truncation"] > truncation or tall(t) < height
        return "ignored" if hard else "counts"

    def kind_of_found(f):
        if tall(f) < height:
            return "ignored"
        return "counts" if f["class"] == name else None

    def run(threshold):
        """(true positives' scores, false positives, similarity) over all frames."""
        hits, false, similarity = [], 0, 0.0
        for ts, fs in zip(truth, found, strict=True):
            used = set()
            for t in ts:
                kind = kind_of_truth(t)
                if kind is None:
                    continue
                chosen, best, chosen_kind = None, -math.inf, None
                for i, f in enumerate(fs):
                    mine = kind_of_found(f)
                    if mine is None or i in used:
                        continue
                    if threshold is not None and f["score"] < threshold:
                        continue
                    overlap = iou(f, t)
                    if overlap <= needed:
                        continue
                    if threshold is None:
                        if f["score"] > best:
                            chosen, best, chosen_kind = i, f["score"], mine
                    elif mine == "counts":
                        if chosen_kind != "counts" or overlap > best:
                            chosen, best, chosen_kind = i, overlap, mine
                    elif chosen is None:
                        chosen, chosen_kind = i, mine
                if chosen is None:
                    continue
                used.add(chosen)
                if kind == "counts" and chosen_kind == "counts":
                    hits.append(fs[chosen]["score"])
                    away = t.get("alpha", 0.0) - fs[chosen].get("alpha", 0.0)
                    similarity += (1 + math.cos(away)) / 2
            for i, f in enumerate(fs):
                if i in used or kind_of_found(f) != "counts":
                    continue
                if threshold is not None and f["score"] < threshold:
                    continue
                areas = [t["rectangle"] for t in ts if t["class"] == "DontCare"]
                if in_image and any(part_in(f["rectangle"], area) > needed for area in areas):
                    continue
                false += 1
        return hits, false, similarity

    number = sum(kind_of_truth(t) == "counts" for ts in truth for t in ts)
    if not number:
        return math.nan
    scores = sorted(run(None)[0], reverse=True)
    thresholds, wanted = [], 0.0
    for i, score in enumerate(scores):
        left, right = (i + 1) / number, (min(i + 1, len(scores) - 1) + 1) / number
        if i < len(scores) - 1 and right - wanted < wanted - left:
            continue
        thresholds.append(score)
        wanted += 1 / 40
    precision = []
    for threshold in thresholds:
        hits, false, similarity = run(threshold)
        worth = similarity if oriented else len(hits)
        precision.append(worth / (len(hits) + false) if hits or false else 0.0)
    counted = range(1, 41) if recalls == 40 else range(0, 41, 4)
    return sum(max(precision[k:], default=0.0) for k in counted) / recalls


def rectangle_overlap(a, b) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(tall, 0.0)


def rectangle_area(a) -> float:
    return (a[2] - a[0]) * (a[3] - a[1])


def part_in(a, b) -> float:
    return rectangle_overlap(a, b) / rectangle_area(a)


def rectangle_iou(a, b) -> float:
    shared = rectangle_overlap(a, b)
    return shared / (rectangle_area(a) + rectangle_area(b) - shared)
