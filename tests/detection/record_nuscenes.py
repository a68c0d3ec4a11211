"""Record what nuScenes' development kit says of the made samples of `test_metrics.py`.

The kit needs NumPy 1, and so an environment of its own; the two sides exchange files:

    python tests/detection/record_nuscenes.py samples.json              # voxax's environment
    python tests/detection/record_nuscenes.py samples.json numbers.json # with nuscenes-devkit
    mv numbers.json tests/detection/nuscenes_devkit.json
"""

import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

SEEDS = (11, 12, 13)


def write_samples(path: Path) -> None:
    """The samples as the kit's boxes are written, in the frame of the vehicle."""
    folder = Path(__file__).resolve().parent
    sys.path[:0] = [str(folder), str(folder.parent)]
    from test_metrics import nuscenes_samples

    cases = []
    for seed in SEEDS:
        sides = [[as_dictionaries(s) for s in samples] for samples in nuscenes_samples(seed)]
        cases.append({"seed": seed, "truth": sides[0], "found": sides[1]})
    path.write_text(json.dumps(cases))


def as_dictionaries(sample) -> list[dict]:
    rows = []
    for i, box in enumerate(sample.boxes.tolist()):
        row = {
            "translation": box[:3],
            "size": box[3:6],
            "rotation": [math.cos(box[6] / 2), 0.0, 0.0, math.sin(box[6] / 2)],
            "velocity": box[7:9],
            "ego_translation": box[:3],
            "num_pts": int(sample.num_points[i]),
            "detection_name": str(sample.classes[i]),
            "detection_score": -1.0 if sample.scores is None else float(sample.scores[i]),
            "attribute_name": str(sample.attributes[i]),
        }
        rows.append(row)
    return rows


class NoBicycleRacks:
    """Stands for a data set of which the kit asks only for bicycle racks."""

    def get(self, table, token):
        return {"anns": []}


def evaluate(path: Path, to: Path) -> None:
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.common.data_classes import EvalBoxes
    from nuscenes.eval.common.loaders import filter_eval_boxes
    from nuscenes.eval.detection.data_classes import DetectionBox
    from nuscenes.eval.detection.evaluate import DetectionEval

    def boxes_of(samples):
        boxes = EvalBoxes()
        for number, rows in enumerate(samples):
            token = f"sample-{number:04d}"
            made = [DetectionBox.deserialize({**row, "sample_token": token}) for row in rows]
            boxes.add_boxes(token, made)
        return filter_eval_boxes(NoBicycleRacks(), boxes, config.class_range)

    config = config_factory("detection_cvpr_2019")
    cases = []
    for case in json.loads(path.read_text()):
        run = DetectionEval.__new__(DetectionEval)
        run.cfg, run.verbose = config, False
        run.gt_boxes, run.pred_boxes = boxes_of(case["truth"]), boxes_of(case["found"])
        summary = run.evaluate()[0].serialize()
        kept = ("mean_ap", "nd_score", "label_aps", "label_tp_errors")
        cases.append({"seed": case["seed"], **{name: summary[name] for name in kept}})
    numbers = {"nuscenes-devkit": version("nuscenes-devkit"), "cases": cases}
    text = json.dumps(numbers, indent=1)
    to.write_text(text.replace("NaN", "null") + "\n")


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    if len(files) == 1:
        write_samples(*files)
    else:
        evaluate(*files)
