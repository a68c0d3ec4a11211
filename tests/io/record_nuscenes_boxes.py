"""Record the boxes that nuScenes' development kit gives for the made folder of `test_nuscenes.py`.

The kit needs NumPy 1, and so an environment of its own:

    python tests/io/record_nuscenes_boxes.py folder                # voxax's environment
    python tests/io/record_nuscenes_boxes.py folder numbers.json   # with nuscenes-devkit
    mv numbers.json tests/io/nuscenes_boxes.json
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path


def write_folder(folder: Path) -> None:
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent)]
    import numpy as np
    from test_nuscenes import SCENES

    import folders

    folder.mkdir()
    folders.nuscenes(folder, np.random.default_rng(3), SCENES)
    # Tables that the kit wants, and the readers here do not.
    tables = folder / "v1.0-mini"
    masks = [{"token": "map", "filename": "map.png", "log_tokens": ["log"], "category": "x"}]
    logs = [{"token": "log", "logfile": "", "location": "", "vehicle": "", "date_captured": ""}]
    levels = [{"token": "", "level": "", "description": ""}]
    (folder / "map.png").touch()
    for name, rows in (("map", masks), ("log", logs), ("visibility", levels)):
        (tables / f"{name}.json").write_text(json.dumps(rows))


def record(folder: Path, to: Path) -> None:
    import numpy as np
    from nuscenes.eval.detection.utils import category_to_detection_name
    from nuscenes.nuscenes import NuScenes
    from pyquaternion import Quaternion

    kit = NuScenes("v1.0-mini", str(folder), verbose=False)
    samples = []
    for sample in kit.sample:
        token = sample["data"]["LIDAR_TOP"]
        _, boxes, _ = kit.get_sample_data(token)
        data = kit.get("sample_data", token)
        mount = kit.get("calibrated_sensor", data["calibrated_sensor_token"])
        ego = kit.get("ego_pose", data["ego_pose_token"])
        turn = (Quaternion(ego["rotation"]) * Quaternion(mount["rotation"])).inverse
        rows = []
        for box in boxes:
            name = category_to_detection_name(box.name)
            if name is None:
                continue
            width, length, height = box.wlh
            front = box.orientation.rotation_matrix[:, 0]
            velocity = turn.rotate(kit.box_velocity(box.token))[:2]
            center = box.center.tolist()
            yaw = float(np.arctan2(front[1], front[0]))
            about = kit.get("sample_annotation", box.token)
            box.rotate(Quaternion(mount["rotation"]))
            box.translate(np.array(mount["translation"]))
            rows.append(
                {
                    "class": name,
                    "box": [*center, length, width, height, yaw, *velocity],
                    "points": about["num_lidar_pts"] + about["num_radar_pts"],
                    "vehicle": box.center.tolist(),
                }
            )
        samples.append(rows)
    numbers = {"nuscenes-devkit": version("nuscenes-devkit"), "samples": samples}
    to.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    if len(files) == 1:
        write_folder(*files)
    else:
        record(*files)
