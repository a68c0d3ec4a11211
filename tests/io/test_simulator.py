"""The simulator's geometry against known distances, and its sweeps against their promises."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.io.simulator import (
    CLASS_NAMES,
    SENSORS,
    Sensor,
    Solids,
    Street,
    StreetScene,
    Terrain,
    simulate_sweep,
    street_scene,
)
from voxax.io.simulator.solids import (
    BOX,
    BUILDING,
    CYLINDER,
    ELLIPSOID,
    PERSON,
    UNIT_SHAPES,
    VEHICLE,
    entry,
    facing,
    to_local,
)
from voxax.io.simulator.sweep import nearest_hits

GROUND_ONLY = Terrain(
    slope=np.zeros(2), waves=np.zeros((0, 4)), streets=(), kerb=0.0, shade=np.array([0.3, 0.3])
)


def solids(*rows, penetration=0.0) -> Solids:
    """Rows of (shape, center, half, yaw in degrees, label)."""
    return Solids(
        shape=np.array([row[0] for row in rows], np.int8),
        center=np.array([row[1] for row in rows], np.float64).reshape(-1, 3),
        half=np.array([row[2] for row in rows], np.float64).reshape(-1, 3),
        yaw=np.deg2rad(np.array([row[3] for row in rows], np.float64)),
        label=np.array([row[4] for row in rows], np.int32),
        reflectivity=np.full(len(rows), 0.5),
        penetration=np.full(len(rows), penetration),
    )


def unit(vector):
    vector = np.asarray(vector, np.float64)
    return vector / np.linalg.norm(vector)


def intersect(solids, origin, direction):
    """Entry and exit distances of ray ``i`` through primitive ``i``, each ``[n]``."""
    near, far = np.full(len(solids), np.inf), np.full(len(solids), -np.inf)
    half = solids.half.T
    start = to_local(origin - solids.center.T, solids.yaw) / half
    heading = to_local(direction, solids.yaw) / half
    for shape, unit_shape in UNIT_SHAPES.items():
        rows = np.flatnonzero(solids.shape == shape)
        near[rows], far[rows] = unit_shape(start[:, rows], heading[:, rows])
    return near, far


def distance_to(shape, center, half, yaw, origin, towards):
    """Distance from `origin` along the ray that points in the direction `towards`."""
    one = solids((shape, center, half, yaw, 1))
    start, heading = np.array(origin, np.float64)[:, None], unit(towards)[:, None]
    return entry(intersect(one, start, heading))[0]


def ranges(cloud, sensor):
    return np.linalg.norm(cloud.positions - [0.0, 0.0, sensor.height], axis=1)


ONE_STEP = 1e-9
RECTANGLE = ((10.0, 0.0, 0.0), (2.0, 1.0, 0.5))


@pytest.mark.parametrize(
    ("shape", "center", "half", "yaw", "origin", "towards", "expected"),
    [
        # Straight at a face, an edge-on turn, a quarter turn, and from above.
        (BOX, *RECTANGLE, 0, (0, 0, 0), (1, 0, 0), 8.0),
        (BOX, (10, 0, 0), (1, 1, 1), 45, (0, 0, 0), (1, 0, 0), 10 - np.sqrt(2)),
        (BOX, *RECTANGLE, 90, (0, 0, 0), (1, 0, 0), 9.0),
        (BOX, *RECTANGLE, 0, (10, 0, 7), (0, 0, -1), 6.5),
        # Just inside and just outside a face that the ray runs along.
        (BOX, *RECTANGLE, 0, (0, 1 - ONE_STEP, 0), (1, 0, 0), 8.0),
        (BOX, *RECTANGLE, 0, (0, 1 + ONE_STEP, 0), (1, 0, 0), np.inf),
        # Behind, and from within.
        (BOX, *RECTANGLE, 0, (0, 0, 0), (-1, 0, 0), np.inf),
        (BOX, *RECTANGLE, 0, (10, 0, 0), (1, 0, 0), np.inf),
        (BOX, (3, 3, 0), (1, 1, 1), 0, (0, 0, 0), (1, 1, 0), 2 * np.sqrt(2)),
        # The side of a cylinder, off-center (3-4-5), grazing, missing, its cap, over its top.
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (0, 0, 0), (1, 0, 0), 8.0),
        (CYLINDER, (10, 0, 0), (5, 5, 5), 0, (0, 3, 0), (1, 0, 0), 6.0),
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (0, 2 - ONE_STEP, 0), (1, 0, 0), 10.0),
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (0, 2 + ONE_STEP, 0), (1, 0, 0), np.inf),
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (10.5, 1, 9), (0, 0, -1), 4.0),
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (12.5, 0, 9), (0, 0, -1), np.inf),
        (CYLINDER, (10, 0, 0), (2, 2, 5), 0, (0, 0, 5.1), (1, 0, 0), np.inf),
        (CYLINDER, (10, 0, -8), (2, 2, 5), 0, (0, 0, 0), (10, 0, -3), np.hypot(10, 3)),
        # Oval, and turned by a quarter.
        (CYLINDER, (10, 0, 0), (3, 1, 5), 90, (0, 0, 0), (1, 0, 0), 9.0),
        # A ball off-center, an ellipsoid along each axis, turned, grazing, missing, within.
        (ELLIPSOID, (10, 0, 0), (5, 5, 5), 0, (0, 0, 4), (1, 0, 0), 7.0),
        (ELLIPSOID, (10, 0, 0), (3, 2, 1), 0, (0, 0, 0), (1, 0, 0), 7.0),
        (ELLIPSOID, (0, 10, 0), (3, 2, 1), 0, (0, 0, 0), (0, 1, 0), 8.0),
        (ELLIPSOID, (0, 0, 10), (3, 2, 1), 0, (0, 0, 0), (0, 0, 1), 9.0),
        (ELLIPSOID, (10, 0, 0), (3, 2, 1), 90, (0, 0, 0), (1, 0, 0), 8.0),
        (ELLIPSOID, (10, 0, 0), (3, 2, 1), 0, (0, 0, 1 - 1e-13), (1, 0, 0), 10.0),
        (ELLIPSOID, (10, 0, 0), (3, 2, 1), 0, (0, 0, 1.001), (1, 0, 0), np.inf),
        (ELLIPSOID, (10, 0, 0), (3, 2, 1), 0, (10, 0, 0), (1, 0, 0), np.inf),
    ],
)
def test_known_distances(shape, center, half, yaw, origin, towards, expected):
    found = distance_to(shape, center, half, yaw, origin, towards)
    # Grazing rays lose half of the digits to the square root.
    assert found == pytest.approx(expected, abs=1e-4 if expected == 10.0 else 1e-9)


@pytest.mark.parametrize("shape", [BOX, CYLINDER, ELLIPSOID])
def test_entries_lie_on_the_surface(shape, rng):
    n = 500
    many = Solids(
        shape=np.full(n, shape, np.int8),
        center=rng.normal(0.0, 3.0, (n, 3)),
        half=rng.uniform(0.2, 2.0, (n, 3)),
        yaw=rng.uniform(-np.pi, np.pi, n),
        label=np.zeros(n, np.int32),
        reflectivity=np.zeros(n),
        penetration=np.zeros(n),
    )
    origin = rng.normal(0.0, 1.0, (3, n)) + np.array([[15.0], [0.0], [0.0]])
    aim = many.center.T + rng.normal(0.0, 0.5, (3, n)) - origin
    direction = aim / np.linalg.norm(aim, axis=0)
    near, far = intersect(many, origin, direction)
    hit = near <= far
    assert 0.5 < hit.mean() < 1.0
    for t in (near, far):
        point = (origin + t * direction).T[hit] - many.center[hit]
        c, s = np.cos(many.yaw[hit]), np.sin(many.yaw[hit])
        local = np.stack(
            [c * point[:, 0] + s * point[:, 1], c * point[:, 1] - s * point[:, 0], point[:, 2]]
        )
        local = np.abs(local / many.half[hit].T)
        radial = np.hypot(local[0], local[1])
        size = {
            BOX: local.max(axis=0),
            CYLINDER: np.maximum(radial, local[2]),
            ELLIPSOID: np.linalg.norm(local, axis=0),
        }[shape]
        np.testing.assert_allclose(size, 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "yaw", "point", "towards", "expected"),
    [
        (BOX, 0, (-1, 0, 0), (1, 0, 0), 1.0),
        (BOX, 30, (-np.cos(np.pi / 6), -np.sin(np.pi / 6), 0), (1, 0, 0), np.cos(np.pi / 6)),
        (CYLINDER, 0, (-1, 0, 0.3), (1, 0, -1), np.sqrt(0.5)),
        (CYLINDER, 0, (0.2, 0.1, 1), (1, 0, -1), np.sqrt(0.5)),
        (ELLIPSOID, 0, (-np.sqrt(0.5), np.sqrt(0.5), 0), (1, 0, 0), np.sqrt(0.5)),
    ],
)
def test_facing(shape, yaw, point, towards, expected):
    one = solids((shape, (0, 0, 0), (1, 1, 1), yaw, 1))
    found = facing(one, np.array(point, np.float64)[:, None], unit(towards)[:, None])
    assert found[0] == pytest.approx(expected)


def test_level_ground():
    direction = np.stack([unit(v) for v in [(0, 0, -1), (4, 0, -3), (1, 0, 0), (1, 0, 1)]]).T
    far = np.full(4, 100.0)
    found = GROUND_ONLY.intersect(np.array([0.0, 0.0, 3.0]), direction, far)
    np.testing.assert_allclose(found, [3.0, 5.0, np.inf, np.inf], atol=2e-3)
    near = GROUND_ONLY.intersect(np.array([0.0, 0.0, 3.0]), direction, np.full(4, 4.0))
    np.testing.assert_allclose(near, [3.0, np.inf, np.inf, np.inf], atol=2e-3)


def test_sloping_ground():
    tilted = replace(GROUND_ONLY, slope=np.array([0.1, 0.0]))
    ahead = np.array([[1.0], [0.0], [0.0]])
    found = tilted.intersect(np.array([0.0, 0.0, 2.0]), ahead, np.array([100.0]))
    assert found[0] == pytest.approx(20.0, abs=0.05)


def test_ground_hits_lie_on_the_ground():
    terrain = street_scene(3).terrain
    direction = SENSORS["lidar64"].rays(np.random.default_rng(0)).direction
    origin, limit = np.array([0.0, 0.0, 1.8]), np.full(direction.shape[1], 60.0)
    t = terrain.intersect(origin, direction, limit)
    x, y, z = origin[:, None] + np.where(np.isfinite(t), t, 0.0) * direction
    error = np.abs(z - terrain.height(x, y))[np.isfinite(t)]
    assert len(error) > 10_000
    assert error.max() < 0.02
    assert terrain.height(0.0, 0.0) == 0.0


@pytest.mark.parametrize("across", [-8.0, 0.0, 5.0])
def test_places_on_a_street_are_found_again(across):
    street = Street(0.7, 0.0, 1.5, 1 / 150, 5.0, 3.0)
    for along in (-40.0, 0.0, 25.0):
        x, y, _ = street.place(along, across)
        found = street.locate(x, y)
        assert found == pytest.approx((along, across), abs=2.5)
        assert found[1] == pytest.approx(across, abs=0.05 * abs(across) + 1e-9)


def test_windows_lose_nothing():
    """The culled search agrees with a test of every ray against every primitive."""
    full = street_scene(5).solids
    scene = replace(full, penetration=np.zeros(len(full)))
    sensor = replace(SENSORS["lidar32"], azimuth_steps=60)
    origin = np.array([0.0, 0.0, sensor.height])
    for seed in range(2):
        rng = np.random.default_rng(seed)
        grid = sensor.rays(rng)
        found, which = nearest_hits(scene, origin, grid, 80.0, rng)
        expected = np.full(grid.direction.shape[1], np.inf)
        for i in range(len(scene)):
            one = scene.take(np.full(len(expected), i))
            expected = np.minimum(expected, entry(intersect(one, origin[:, None], grid.direction)))
        expected[expected > 80.0] = np.inf
        np.testing.assert_allclose(found, expected, atol=1e-9)
        assert ((which >= 0) == np.isfinite(expected)).all()


def test_a_wall_hides_what_is_behind():
    behind = (CYLINDER, (12, 0, 1), (0.5, 0.5, 1), 0, PERSON)
    beside = (BOX, (0, 9, 1), (2, 1, 1), 0, VEHICLE)
    wall = (BOX, (6, 0, 2), (0.2, 4, 2), 0, BUILDING)
    exposed = simulate_sweep(0, scene=StreetScene(solids(behind, beside), GROUND_ONLY))
    hidden = simulate_sweep(0, scene=StreetScene(solids(behind, beside, wall), GROUND_ONLY))
    assert np.count_nonzero(exposed.labels == PERSON) > 20
    assert np.count_nonzero(hidden.labels == PERSON) == 0
    assert np.count_nonzero(hidden.labels == VEHICLE) > 50
    shadow = hidden.positions[(hidden.labels == 0) & (np.abs(hidden.positions[:, 1]) < 3.0)]
    assert shadow[:, 0].max() < 6.0


def test_porous_solids_are_entered():
    block = solids((BOX, (6, 0, 2), (1, 4, 2), 0, 4), penetration=0.5)
    sensor = replace(SENSORS["lidar32"], range_noise=0.0)
    x = simulate_sweep(0, sensor=sensor, scene=StreetScene(block, None)).positions[:, 0]
    assert x.min() >= 5.0 - 1e-9
    assert x.max() <= 7.0 + 1e-9
    assert x.mean() - 5.0 == pytest.approx(0.42, abs=0.1)


@pytest.mark.parametrize("name", SENSORS)
def test_sweeps_keep_their_promises(name):
    sensor = SENSORS[name]
    for seed in range(5):
        cloud = simulate_sweep(seed, sensor=name)
        n = len(cloud.positions)
        ring, intensity = cloud.attributes["ring"], cloud.attributes["intensity"]
        assert 0.5 * sensor.rings * sensor.azimuth_steps < n
        assert n <= sensor.rings * sensor.azimuth_steps
        assert (cloud.positions.dtype, cloud.positions.shape) == (np.float64, (n, 3))
        assert (cloud.labels.dtype, ring.dtype) == (np.int32, np.int32)
        assert intensity.dtype == np.float32
        assert ring.shape == intensity.shape == cloud.labels.shape == (n,)
        assert 0.0 <= intensity.min() <= intensity.max() <= 1.0
        assert np.isfinite(cloud.positions).all()
        assert ranges(cloud, sensor).max() <= sensor.max_range + 1e-9
        counts = np.bincount(cloud.labels, minlength=len(CLASS_NAMES))
        assert len(counts) == len(CLASS_NAMES)
        assert counts.min() >= 100
        assert name in cloud.source
        assert str(seed) in cloud.source


@pytest.mark.parametrize(("name", "rings"), [("lidar32", 32), ("lidar64", 64), ("lidar128", 128)])
def test_points_lie_on_the_cone_of_their_ring(name, rings):
    sensor = SENSORS[name]
    assert sensor.rings == rings
    cloud = simulate_sweep(1, sensor=name)
    x, y, z = cloud.positions.T
    elevation = np.rad2deg(np.arctan2(z - sensor.height, np.hypot(x, y)))
    ring = cloud.attributes["ring"]
    np.testing.assert_allclose(elevation, np.array(sensor.elevations)[ring], atol=1e-6)
    assert (np.diff(ring) >= 0).all()
    assert np.bincount(ring).max() <= sensor.azimuth_steps


def test_a_seed_says_everything():
    one, again, other = (simulate_sweep(seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.positions, again.positions)
    np.testing.assert_array_equal(one.labels, again.labels)
    for name, values in one.attributes.items():
        np.testing.assert_array_equal(values, again.attributes[name])
    assert one.positions.shape != other.positions.shape
    scene = street_scene(7)
    np.testing.assert_array_equal(simulate_sweep(7, scene=scene).positions, one.positions)
    fresh = simulate_sweep(8, scene=scene)
    assert fresh.positions.shape != one.positions.shape


def test_range_noise_has_its_width():
    room = StreetScene(solids((BOX, (6, 0, 0), (0.1, 40, 40), 0, BUILDING)), None)
    exact = replace(SENSORS["lidar64"], range_noise=0.0, dropout=0.0)
    noisy = replace(exact, range_noise=0.05)
    a, b = (simulate_sweep(3, sensor=s, scene=room) for s in (exact, noisy))
    np.testing.assert_allclose(a.positions[:, 0], 5.9)
    error = ranges(b, noisy) - ranges(a, exact)
    assert len(error) > 10_000
    assert error.mean() == pytest.approx(0.0, abs=0.003)
    assert error.std() == pytest.approx(0.05, rel=0.05)


def test_dropout_grows_with_range_and_grazing():
    sensor = SENSORS["lidar32"]
    near = np.array([1.0, 60.0])
    frontal = sensor.dropout_probability(near, np.ones(2))
    grazed = sensor.dropout_probability(near, np.full(2, 0.02))
    assert frontal[0] == pytest.approx(sensor.dropout, abs=1e-3)
    assert frontal[0] < frontal[1] < grazed[1] <= 1.0
    assert frontal[0] < grazed[0]
    wall = StreetScene(solids((BOX, (3, 0, 0), (0.1, 60, 60), 0, BUILDING)), None)
    short = replace(sensor, elevations=(-1.0, 0.0, 1.0), azimuth_steps=8000, max_range=6.0)
    full, half = (
        len(simulate_sweep(0, sensor=replace(short, dropout=p), scene=wall).positions)
        for p in (0.0, 0.5)
    )
    assert half / full == pytest.approx(0.5, abs=0.03)


def test_empty_scenes():
    nothing = simulate_sweep(0, scene=StreetScene(solids(), None))
    assert nothing.positions.shape == (0, 3)
    assert len(nothing.labels) == len(nothing.attributes["ring"]) == 0
    ground = simulate_sweep(0, scene=StreetScene(solids(), GROUND_ONLY))
    assert len(ground.positions) > 10_000
    assert (ground.labels == 0).all()
    assert np.abs(ground.positions[:, 2]).max() < 0.1


def test_scenes_have_many_small_objects_near():
    """A head is the only small ellipsoid of a person, a post the only cylinder of a pole."""
    for seed in range(5):
        s = street_scene(seed).solids
        near = np.hypot(s.center[:, 0], s.center[:, 1]) < 30.5
        heads = near & (s.label == PERSON) & (s.shape == ELLIPSOID) & (s.half[:, 0] == 0.1)
        posts = near & (s.label == 3) & (s.shape == CYLINDER)
        assert np.count_nonzero(heads) >= 25
        assert np.count_nonzero(posts) >= 18


def test_intensity_does_not_give_the_label_away():
    """The best guess from intensity alone is hardly better than the commonest class."""
    clouds = [simulate_sweep(seed) for seed in range(6)]
    labels = np.concatenate([cloud.labels for cloud in clouds])
    intensity = np.concatenate([cloud.attributes["intensity"] for cloud in clouds])
    bins = np.minimum((intensity * 20).astype(int), 19)
    table = np.zeros((20, len(CLASS_NAMES)))
    np.add.at(table, (bins, labels), 1)
    share = table.sum(axis=0)
    assert table.max(axis=1).sum() / table.sum() < share.max() / share.sum() + 0.12
    # The same with classes weighed equally.
    balanced = table / share
    assert balanced.max(axis=1).sum() / len(CLASS_NAMES) < 0.4


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match=r"lidar16.*lidar32, lidar64, lidar128"):
        simulate_sweep(0, sensor="lidar16")
    for seed in (-1, 1.5, True, "a"):
        with pytest.raises(InputError, match="seed"):
            simulate_sweep(seed)
    good = SENSORS["lidar32"]
    wrong = {
        "elevations": [(), (1.0, 0.0), (0.0, 95.0)],
        "azimuth_steps": [0, 90.5, 10**9],
        "height": [0.0, -1.0, np.nan, np.inf, "tall"],
        "dropout": [-0.1, 1.1, np.nan],
        "range_noise": [-1.0, np.nan, np.inf, 1e6],
        "max_range": [0.5, np.nan, np.inf, 1e300],
        "min_range": [-0.5, np.nan],
    }
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=field):
                replace(good, **{field: value})


def test_own_sensor():
    sensor = Sensor("mine", (-10.0, -5.0), 36, 2.0, 30.0, 0.0, 0.0)
    cloud = simulate_sweep(0, sensor=sensor)
    assert len(cloud.positions) <= 72
    assert set(cloud.attributes["ring"].tolist()) <= {0, 1}


def test_solids_of_a_scene_are_consistent():
    for seed, scene in itertools.islice(((s, street_scene(s)) for s in itertools.count(20)), 3):
        s = scene.solids
        n = len(s)
        assert n > 300, seed
        assert s.center.shape == s.half.shape == (n, 3)
        assert (s.half > 0).all()
        assert ((s.reflectivity >= 0) & (s.reflectivity <= 1)).all()
        # Only leaves let rays in.
        assert set(s.label[s.penetration > 0].tolist()) <= {4}
        assert set(np.unique(s.label).tolist()) == {1, 2, 3, 4, 5}
