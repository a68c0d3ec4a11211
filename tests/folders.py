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


def scannet200(folder, rng, scenes):
    """Meshes whose vertices are in ten segments of five objects."""
    categories = [(2, "chair"), (9999, "object of none of the classes"), (1, "wall"), (1191, "toy")]
    rows = ["\t".join(("id", "raw_category", "category"))]
    rows += [f"{number}\t{name}\t{name}" for number, name in categories]
    folder.mkdir(exist_ok=True)
    (folder / "scannetv2-labels.combined.tsv").write_text("\n".join(rows) + "\n")
    scannet(folder, rng, scenes, points=60)
    for name in scenes:
        own = folder / "scans" / name
        segments = {"segIndices": (rng.integers(0, 10, 60) * 7).tolist()}
        (own / f"{name}_vh_clean_2.0.010000.segs.json").write_text(json.dumps(segments))
        labels = ("chair", "object of none of the classes", "wall", "unlisted")
        groups = [
            {"objectId": i, "label": label, "segments": [14 * i, 14 * i + 7]}
            for i, label in enumerate(labels)
        ]
        (own / f"{name}.aggregation.json").write_text(json.dumps({"segGroups": groups}))
    return folder


def pointcept(folder, rng, places, labels, number=40, classes=20):
    """Scenes as Pointcept prepares them: an array for each value."""
    for name in places:
        own = folder / name
        own.mkdir(parents=True)
        np.save(own / "coord.npy", rng.uniform(0, 5, (number, 3)).astype("f4"))
        np.save(own / "color.npy", rng.integers(0, 256, (number, 3)).astype("u1"))
        np.save(own / "normal.npy", rng.normal(size=(number, 3)).astype("f4"))
        np.save(own / "instance.npy", rng.integers(-1, 5, (number, 1)).astype("i2"))
        np.save(own / labels, rng.integers(-1, classes, number).astype("i2"))
    return folder


def s3dis(folder, rng, rooms, points=20):
    """Rooms of three objects, one of a class that is clutter."""
    for room in rooms:
        own = folder / room / "Annotations"
        own.mkdir(parents=True)
        for name in ("chair_1", "floor_1", "stairs_1"):
            rows = np.column_stack(
                [rng.uniform(-3, 3, (points, 3)), rng.integers(0, 256, (points, 3))]
            )
            np.savetxt(own / f"{name}.txt", rows, fmt=["%.3f"] * 3 + ["%d"] * 3)
        (folder / room / f"{room.rpartition('/')[2]}.txt").write_text("0 0 0 0 0 0\n")
    return folder


def shapenet_part(folder, rng):
    """Four tables of three parts."""
    (folder / "train_test_split").mkdir(parents=True)
    (folder / "synsetoffset2category.txt").write_text("Airplane\t02691156\nTable\t04379243\n")
    for split, names in (("train", ["a", "b"]), ("val", ["c"]), ("test", ["d"])):
        entries = [f"shape_data/04379243/{name}" for name in names]
        path = folder / f"train_test_split/shuffled_{split}_file_list.json"
        path.write_text(json.dumps(entries))
        for name in names:
            rows = np.column_stack([rng.normal(size=(30, 6)), rng.integers(47, 50, 30)])
            own = folder / f"04379243/{name}.txt"
            own.parent.mkdir(exist_ok=True)
            np.savetxt(own, rows, fmt=["%.6f"] * 7)  # parts are written as 47.000000
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


def nuscenes_sweeps(folder, rng, number=3, points=60, version="v1.0-mini"):
    """Add sweeps before each key frame of :func:`nuscenes`, each before the other."""
    tables = folder / version
    data, poses = (
        json.loads((tables / f"{name}.json").read_text()) for name in ("sample_data", "ego_pose")
    )
    (folder / "sweeps" / "LIDAR_TOP").mkdir(parents=True, exist_ok=True)
    scene, before, added = None, "", []
    for row in data:
        if not row["is_key_frame"] or "LIDAR_TOP" not in row["filename"]:
            continue
        name = row["sample_token"].partition(" sample ")[0]
        before, scene = ("" if name != scene else before), name
        (ego,) = [pose for pose in poses if pose["token"] == row["ego_pose_token"]]
        for age in range(number, 0, -1):
            token = f"sweep {age} before {row['token']}"
            file = f"sweeps/LIDAR_TOP/{token.replace(' ', '-')}.pcd.bin"
            rows = rng.uniform((-20, -20, -2, 0, 0), (20, 20, 1, 200, 31), (points, 5))
            rows[::7, :2] = rng.uniform(-1.2, 1.2, rows[::7, :2].shape)  # some at the vehicle
            rows.astype("<f4").tofile(folder / file)
            place = (np.array(ego["translation"]) - age * rng.uniform(0, 1, 3)).tolist()
            turned = {"rotation": quaternion(rng), "translation": place}
            poses.append({**ego, **turned, "token": token})
            time = row["timestamp"] - 50_000 * age - int(rng.integers(0, 900))
            own = {"token": token, "is_key_frame": False, "filename": file, "timestamp": time}
            added.append({**row, **own, "ego_pose_token": token, "prev": before, "next": ""})
            before = token
        row["prev"], before = before, row["token"]
    (tables / "sample_data.json").write_text(json.dumps(data + added))
    (tables / "ego_pose.json").write_text(json.dumps(poses))
    return folder


def nuscenes_other_tables(folder):
    """Add the tables that only the development kit reads."""
    tables = folder / "v1.0-mini"
    for name in ("visibility", "log", "map"):
        (tables / f"{name}.json").write_text("[]")
    rows = [{"token": "log", "logfile": "", "location": "", "vehicle": "", "date_captured": ""}]
    (tables / "log.json").write_text(json.dumps(rows))
    maps = [{"token": "map", "log_tokens": ["log"], "category": "", "filename": "map.png"}]
    (tables / "map.json").write_text(json.dumps(maps))
    (folder / "map.png").touch()
    return folder


def lidarseg(folder, classes):
    """Add labels to :func:`nuscenes`; `classes` returns one of 16 for each point [N, 5]."""
    tables = folder / "v1.0-mini"
    names = {"vehicle.ego": -1, "human.pedestrian.adult": 6, "flat.driveable_surface": 10}
    names |= {"vehicle.car": 3, "movable_object.barrier": 0, "animal": -1, "vehicle.bicycle": 1}
    names |= {"vehicle.bus.rigid": 2, "vehicle.construction": 4, "vehicle.motorcycle": 5}
    names |= {"movable_object.trafficcone": 7, "vehicle.trailer": 8, "vehicle.truck": 9}
    names |= {"flat.other": 11, "flat.sidewalk": 12, "flat.terrain": 13, "static.manmade": 14}
    names |= {"static.vegetation": 15, "noise": -1}
    rows = json.loads((tables / "category.json").read_text())
    known = {row["name"]: row for row in rows}
    for name in names:
        known.setdefault(name, {"token": name, "name": name, "description": ""})
    order = ["noise", *(name for name in known if name != "noise")]
    for index, name in enumerate(order):
        known[name]["index"] = index
    (tables / "category.json").write_text(json.dumps(list(known.values())))
    ids = {place: order.index(name) for name, place in names.items() if place >= 0}
    found = []
    (folder / "lidarseg/v1.0-mini").mkdir(parents=True)
    for row in json.loads((tables / "sample_data.json").read_text()):
        if not row["is_key_frame"] or "LIDAR_TOP" not in row["filename"]:
            continue
        points = np.fromfile(folder / row["filename"], "<f4").reshape(-1, 5)
        labels = np.array([ids[k] for k in classes(points)], np.uint8)
        labels[::11] = order.index("animal")
        path = f"lidarseg/v1.0-mini/{row['token']}_lidarseg.bin"
        labels.tofile(folder / path)
        found.append({"token": row["token"], "sample_data_token": row["token"], "filename": path})
    (tables / "lidarseg.json").write_text(json.dumps(found))
    return folder


def waymo(folder, rng, frames, points=400):
    """Write frames in KITTI's layout, and return the boxes [M, 7] of each in the vehicle's frame.

    As the conversion of MMDetection3D does: the middle of a box's bottom is moved into the frame of
    the front camera, which is turned a little against the vehicle, and the yaw is not.
    """
    parts = {name: folder / "training" / name for name in ("velodyne", "label_all", "calib")}
    for part in parts.values():
        part.mkdir(parents=True, exist_ok=True)
    sensor = np.column_stack([SENSOR_TURN @ turn(2, 0.02) @ turn(0, 0.01), [0.03, 2.1, -1.5]])
    true = {}
    for name in frames:
        centers = rng.uniform((-15, -15, 0.5), (15, 15, 1), (3, 3))
        sizes = np.array([[4.6, 2.0, 1.7], [0.9, 0.8, 1.7], [1.8, 0.8, 1.8]])
        yaw = rng.uniform(-3, 3, 3)
        true[name] = np.column_stack([centers, sizes, yaw])
        bottom = centers - sizes * [0, 0, 0.5]
        there = bottom @ sensor[:, :3].T + sensor[:, 3]
        lines = []
        for i, kind in enumerate(("Car", "Pedestrian", "Cyclist")):
            numbers = [*sizes[i, ::-1], *there[i], -yaw[i] - np.pi / 2]
            text = " ".join(f"{value:.9f}" for value in numbers)
            lines.append(f"{kind} 0 0 -10 0 0 0 0 {text} {i}{' identifier==' * (i > 0)}\n")
        (parts["label_all"] / f"{name}.txt").write_text("".join(lines))
        entries = [(f"P{i}", np.eye(3, 4)) for i in range(5)] + [("R0_rect", np.eye(3))]
        entries += [(f"Tr_velo_to_cam_{i}", sensor if i == 0 else np.eye(3, 4)) for i in range(5)]
        text = "".join(f"{k}: {' '.join(f'{v:.12e}' for v in m.ravel())}\n" for k, m in entries)
        (parts["calib"] / f"{name}.txt").write_text(text)
        rows = rng.uniform((-16, -16, 0, 0, 0), (16, 16, 3, 1, 1), (points, 5))
        rows = np.column_stack([rows, np.arange(points)]).astype("<f4")
        rows.tofile(parts["velodyne"] / f"{name}.bin")
    return true


ARGOVERSE2_BOXES = (
    ("REGULAR_VEHICLE", 4.6, 2.0, 1.7),
    ("PEDESTRIAN", 0.9, 0.8, 1.7),
    ("ANIMAL", 1.0, 0.5, 0.5),
)


def argoverse2(folder, rng, logs, points=400):
    """Write logs: ``{"train/a": 2}`` has two sweeps; and return the boxes [M, 7] by timestamp."""
    import pyarrow
    from pyarrow import feather

    true = {}
    for log, number in logs.items():
        (folder / log / "sensors/lidar").mkdir(parents=True)
        rows = []
        for i in range(number):
            time = 315966265259836000 + 100_196_000 * i
            columns = dict(zip("xyz", rng.uniform(-16, 16, (3, points)).astype("f2"), strict=True))
            columns["intensity"] = rng.integers(0, 256, points).astype("u1")
            columns["laser_number"] = rng.integers(0, 64, points).astype("u1")
            columns["offset_ns"] = np.arange(points, dtype="i4")
            place = folder / log / f"sensors/lidar/{time}.feather"
            feather.write_feather(pyarrow.table(columns), str(place))
            boxes = []
            for kind, *sizes in ARGOVERSE2_BOXES:
                center, yaw = rng.uniform(-15, 15, 3), rng.uniform(-3, 3)
                boxes.append([*center, *sizes, yaw])
                row = dict(zip(("length_m", "width_m", "height_m"), map(float, sizes), strict=True))
                row |= dict(zip(("tx_m", "ty_m", "tz_m"), center, strict=True))
                row |= {"qw": np.cos(yaw / 2), "qx": 0.0, "qy": 0.0, "qz": np.sin(yaw / 2)}
                row |= {"timestamp_ns": time, "track_uuid": kind, "category": kind}
                rows.append(row | {"num_interior_pts": 3})
            true[log, time] = np.array(boxes)
        if not log.startswith("test"):
            table = pyarrow.table({name: [row[name] for row in rows] for name in rows[0]})
            feather.write_feather(table, str(folder / log / "annotations.feather"))
    return true


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


def modelnet_hdf5(folder, rng, labels=(0, 1, 1), **more):
    """Two files of clouds, with lists of files and of classes; `more` replaces arrays."""
    import h5py

    for split, own in (("train", labels), ("test", labels[:2])):
        with h5py.File(folder / f"ply_data_{split}0.h5", "w") as file:
            file["data"] = rng.uniform(-1, 1, (len(own), 40, 3)).astype(np.float32)
            file["label"] = np.array(own, np.uint8)[:, None]
            for name, values in more.items():
                del file[name]
                file[name] = values
        path = f"data/modelnet40_ply_hdf5_2048/ply_data_{split}0.h5\n"
        (folder / f"{split}_files.txt").write_text(path)
    (folder / "shape_names.txt").write_text("airplane\nbathtub\n")
    return folder
