"""Small folders in the layouts of data sets, for tests that read or train."""

import json

import numpy as np
from plyfile import PlyData, PlyElement

from voxax.io import write_ply

# Raw ids of SemanticKITTI, and their places among the common classes: road and building.
ROAD, BUILDING = 40, 50


def street(rng, points=1500, reach=16):
    """Return ground with blocks of houses, and for each point whether it is a house."""
    plan = rng.uniform(-reach, reach, (points, 2))
    house = np.floor(plan / 4).sum(1) % 3 == 0
    height = np.where(house, rng.uniform(1, 4, points), 0.0)
    return np.column_stack([plan, height]), house


def semantic_kitti(folder, rng, scans, points=1500):
    """``scans`` sweeps for each sequence: ``{"00": 3}``."""
    for sequence, number in scans.items():
        own = folder / "sequences" / sequence
        for name in ("velodyne", "labels"):
            (own / name).mkdir(parents=True)
        for index in range(number):
            positions, house = street(rng, points)
            rows = np.column_stack([positions, rng.random(points)]).astype("<f4")
            rows.tofile(own / "velodyne" / f"{index:06d}.bin")
            instance = rng.integers(0, 9, points) << 16
            packed = instance | np.where(house, BUILDING, ROAD)
            packed.astype("<u4").tofile(own / "labels" / f"{index:06d}.label")
    return folder


def mesh(path, positions, **columns):
    """Vertices with columns, and faces."""
    kinds = {name: values.dtype.str for name, values in columns.items()}
    rows = np.empty(len(positions), [*((axis, "f4") for axis in "xyz"), *kinds.items()])
    for axis, values in zip("xyz", np.asarray(positions).T, strict=True):
        rows[axis] = values
    for name, values in columns.items():
        rows[name] = values
    faces = np.empty(1, [("vertex_indices", "i4", (3,))])
    faces["vertex_indices"] = [[0, 1, 2]]
    elements = [PlyElement.describe(rows, "vertex"), PlyElement.describe(faces, "face")]
    PlyData(elements, byte_order="<").write(path)


def scannet(folder, rng, scenes, points=800):
    """Write rooms: floor (2), walls (1) and a class that does not count (13)."""
    for name in scenes:
        own = folder / "scans" / name
        own.mkdir(parents=True)
        positions = rng.uniform(0, 4, (points, 3))
        ids = rng.choice(np.asarray([1, 2, 13], np.uint16), points)
        positions[ids == 2, 2] = 0
        positions[ids == 1, 0] = 0
        colors = {c: rng.integers(0, 256, points).astype("u1") for c in ("red", "green", "blue")}
        mesh(own / f"{name}_vh_clean_2.ply", positions, **colors)
        mesh(own / f"{name}_vh_clean_2.labels.ply", positions, **colors, label=ids)
    return folder


def labeled(folder, rng, names, points=800):
    """Scans of one kind or another, labeled 2 (ground) and 6 (building) inside."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        positions, house = street(rng, points)
        labels = np.where(house, 6, 2)
        if path.suffix == ".npz":
            np.savez(path, xyz=positions, label=labels)
        else:
            write_ply(path, positions, labels=labels)
    return folder


# A camera as KITTI's, turned a little against the scanner.
SENSOR_TURN = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])


def turn(axis, angle):
    """Return the rotation [3, 3] around an axis."""
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.eye(3)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    matrix[[first, first, second, second], [first, second, first, second]] = cos, -sin, sin, cos
    return matrix


def kitti_calibration(rng):
    """Return P2, R0_rect and Tr_velo_to_cam."""
    camera = np.array([[700.0, 0, 620, 45], [0, 700, 180, -0.3], [0, 0, 1, 0.003]])
    tilt, pan, roll = rng.normal(0, 0.01, 3)
    sensor = SENSOR_TURN @ turn(0, roll) @ turn(1, tilt) @ turn(2, pan)
    rectify = turn(0, 0.004) @ turn(1, -0.007)
    return camera, rectify, np.column_stack([sensor, [0.01, -0.07, -0.27]])


KITTI_LABELS = """\
Car 0.00 0 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 -6.53 2.39 18.49 1.57
Pedestrian 0.30 1 0.20 600.0 150.0 640.0 230.0 1.80 0.60 0.80 1.50 1.70 12.20 -0.40
DontCare -1 -1 -10 5.00 229.89 214.12 367.61 -1 -1 -1 -1000 -1000 -1000 -10
Van 0.00 2 1.90 300.0 170.0 360.0 220.0 2.00 1.90 4.90 -3.30 1.90 25.00 3.00
"""


def kitti_objects(folder, rng, frames, points=600, labels=KITTI_LABELS, split=None):
    """Write frames with the same boxes, filled with points, on flat ground."""
    parts = {name: folder / "training" / name for name in ("velodyne", "label_2", "calib")}
    for part in parts.values():
        part.mkdir(parents=True, exist_ok=True)
    camera, rectify, sensor = kitti_calibration(rng)
    for name in frames:
        ground = rng.uniform((4, -12, -1.75), (30, 12, -1.7), (points, 3))
        inside = rng.uniform((17.5, 5, -1.7), (20.5, 8, -0.2), (points // 4, 3))
        rows = np.concatenate([ground, inside])
        rows = np.column_stack([rows, rng.random(len(rows))]).astype("<f4")
        rows.tofile(parts["velodyne"] / f"{name}.bin")
        (parts["label_2"] / f"{name}.txt").write_text(labels)
        lines = [("P0", camera), ("P2", camera), ("R0_rect", rectify), ("Tr_velo_to_cam", sensor)]
        text = "".join(f"{key}: {' '.join(f'{v:.12e}' for v in m.ravel())}\n" for key, m in lines)
        (parts["calib"] / f"{name}.txt").write_text(text + "\n")
    if split:
        (folder / "ImageSets").mkdir(exist_ok=True)
        for name, own in split.items():
            (folder / "ImageSets" / f"{name}.txt").write_text("\n".join(own) + "\n")
    return folder


def quaternion(rng, tilt=0.02):
    """Return a rotation about the vertical, tilted a little, as w, x, y, z."""
    yaw = rng.uniform(-np.pi, np.pi)
    values = np.array([np.cos(yaw / 2), *rng.normal(0, tilt, 2), np.sin(yaw / 2)])
    return (values / np.linalg.norm(values)).tolist()


def nuscenes(folder, rng, scenes, points=500, version="v1.0-mini"):
    """Write the tables and sweeps of scenes: ``{"scene-0001": 3}`` has three samples."""
    tables = {name: [] for name in ("sample", "sample_data", "sample_annotation", "ego_pose")}
    names = ("vehicle.car", "human.pedestrian.adult", "movable_object.barrier", "animal")
    tables["category"] = [{"token": f"category {i}", "name": n} for i, n in enumerate(names)]
    tables["attribute"] = [{"token": "attribute 0", "name": "vehicle.parked"}]
    tables["sensor"] = [
        {"token": "lidar", "channel": "LIDAR_TOP", "modality": "lidar"},
        {"token": "camera", "channel": "CAM_FRONT", "modality": "camera"},
    ]
    mount = {"rotation": [0.7077955, -0.0064922, 0.010646, -0.7063073], "camera_intrinsic": []}
    tables["calibrated_sensor"] = [
        {"token": f"mounted {s}", "sensor_token": s, "translation": [0.94, 0.0, 1.84], **mount}
        for s in ("lidar", "camera")
    ]
    (folder / "samples" / "LIDAR_TOP").mkdir(parents=True, exist_ok=True)
    tables["scene"], tables["instance"] = [], []
    for scene, number in scenes.items():
        tokens = [f"{scene} sample {i}" for i in range(number)]
        tables["scene"].append(
            {
                "token": scene,
                "name": scene,
                "nbr_samples": number,
                "first_sample_token": tokens[0],
                "last_sample_token": tokens[-1],
                "log_token": "log",
                "description": "",
            }
        )
        objects = [
            (
                f"{scene} object {i}",
                i,
                rng.uniform((-15, -15, 0.5), (15, 15, 1.5)),
                rng.normal(0, 2, 3),
            )
            for i in range(len(names))
        ]
        for token, category, _, _ in objects:
            last = f"{token} in {tokens[-1]}"
            tables["instance"].append(
                {
                    "token": token,
                    "category_token": f"category {category}",
                    "nbr_annotations": number,
                    "first_annotation_token": f"{token} in {tokens[0]}",
                    "last_annotation_token": last,
                }
            )
        for i, sample in enumerate(tokens):
            around = [tokens[i - 1] if i else "", tokens[i + 1] if i + 1 < number else ""]
            time = 1_500_000_000_000_000 + 500_000 * i
            tables["sample"].append(
                {
                    "token": sample,
                    "scene_token": scene,
                    "timestamp": time,
                    "prev": around[0],
                    "next": around[1],
                }
            )
            place = [400 + 3.0 * i, 1100 - 2.0 * i, 0.1]
            tables["ego_pose"].append(
                {
                    "token": f"ego {sample}",
                    "translation": place,
                    "rotation": quaternion(rng),
                    "timestamp": time,
                }
            )
            file = f"samples/LIDAR_TOP/{scene}-{i}.pcd.bin"
            rows = rng.uniform((-20, -20, -2, 0, 0), (20, 20, 1, 200, 31), (points, 5))
            rows.astype("<f4").tofile(folder / file)
            for sensor, key in (("lidar", True), ("lidar", False), ("camera", True)):
                tables["sample_data"].append(
                    {
                        "token": f"{sensor} {key} {sample}",
                        "sample_token": sample,
                        "ego_pose_token": f"ego {sample}",
                        "calibrated_sensor_token": f"mounted {sensor}",
                        "is_key_frame": key,
                        "filename": file if sensor == "lidar" and key else "nowhere.jpg",
                        "fileformat": "pcd",
                        "timestamp": time,
                        "width": 0,
                        "height": 0,
                        "prev": "",
                        "next": "",
                    }
                )
            for token, category, start, velocity in objects:
                own = [f"{token} in {other}" if other else "" for other in around]
                tables["sample_annotation"].append(
                    {
                        "token": f"{token} in {sample}",
                        "sample_token": sample,
                        "instance_token": token,
                        "visibility_token": "",
                        "attribute_tokens": ["attribute 0"] if category == 0 else [],
                        "translation": (np.array(place) + start + 0.5 * i * velocity).tolist(),
                        "size": rng.uniform(0.5, 3, 3).tolist(),
                        "rotation": quaternion(rng),
                        "prev": own[0],
                        "next": own[1],
                        "num_lidar_pts": 4 * category,
                        "num_radar_pts": 1,
                    }
                )
    (folder / version).mkdir(exist_ok=True)
    for name, rows in tables.items():
        (folder / version / f"{name}.json").write_text(json.dumps(rows))
    return folder


def box_mesh(sides):
    """Return the text of an OFF file with a box of these sides around the origin."""
    corners = [
        f"{x * sides[0]} {y * sides[1]} {z * sides[2]}"
        for x in (-0.5, 0.5)
        for y in (-0.5, 0.5)
        for z in (-0.5, 0.5)
    ]
    faces = ["0 1 3 2", "4 6 7 5", "0 4 5 1", "2 3 7 6", "0 2 6 4", "1 5 7 3"]
    return "\n".join(["OFF8 6 12", *corners, *(f"4 {face}" for face in faces)]) + "\n"


def modelnet(folder, rng, number=2):
    """Write meshes of flat and of tall boxes, ``CLASS/train`` and ``CLASS/test``."""
    for name, sides in (("flat", (2, 2, 0.2)), ("tall", (0.3, 0.3, 2))):
        for split, count in (("train", number), ("test", 1)):
            own = folder / name / split
            own.mkdir(parents=True)
            for index in range(count):
                mesh_text = box_mesh(np.asarray(sides) * rng.uniform(0.9, 1.1, 3))
                (own / f"{name}_{index + 1:04d}.off").write_text(mesh_text)
    return folder
