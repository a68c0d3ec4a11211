"""One scene over eight devices trains as it does on one."""

import pytest

from parallel.own_devices import on_devices


def test_a_scene_over_four_devices():
    on_devices("jobs.check_split(jobs.small, (500,), gradient=1e-6)", 4)


# Steps magnify rounding: losses that agreed to 1e-6 after three were 5e-5 apart after five, where
# XLA optimized little.
@pytest.mark.slow
def test_minkunet_on_a_mesh_of_scenes_and_pieces():
    on_devices("jobs.check_split(jobs.mink, (3000, 2500), data=2, reach=16, steps=3)")
