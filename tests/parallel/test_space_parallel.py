"""One scene over eight devices trains as it does on one."""

import pytest

from parallel.own_devices import on_devices


def test_a_scene_over_four_devices():
    on_devices("jobs.check_split(jobs.small, (500,), gradient=1e-6)", 4)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["lexicographic", "hilbert"])
def test_minkunet(order):
    on_devices(f"jobs.check_split(jobs.mink, (4000,), reach=16, order={order!r})")


@pytest.mark.slow
def test_minkunet_on_a_mesh_of_scenes_and_pieces():
    on_devices("jobs.check_split(jobs.mink, (3000, 2500), data=2, reach=16)")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_real_scan(scans, devices):
    """At a coarser voxel than ``benchmarks/halo.py`` takes."""
    on_devices(
        f"voxels, labels = jobs.lone_star({str(scans)!r}, 0.5)\n"
        "jobs.split_scenes_match(jobs.mink, [voxels], [labels], 1, 1, 1e-5, 'hilbert')",
        devices,
    )
