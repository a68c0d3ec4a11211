"""Eight devices in one process train as one device does."""

import pytest

from parallel.own_devices import on_devices


def test_uneven_and_empty_shards():
    on_devices("jobs.check_against_one_device(jobs.small)")


def test_the_lovasz_loss_is_of_all_scenes_together():
    on_devices(
        "from voxax.models.lovasz import lovasz_softmax\n"
        "jobs.check_against_one_device(jobs.small, steps=5, added_loss=lovasz_softmax)"
    )


@pytest.mark.slow
def test_more_devices_than_scenes():
    on_devices("jobs.check_against_one_device(jobs.small, (90, 200, 40), attach=False)")


@pytest.mark.slow
def test_minkunet():
    """Rounding in another order passes through thirty layers, and grows from step to step.

    Wide scenes: with a handful of voxels at the coarsest level, batch norms would amplify it more.
    """
    on_devices("jobs.check_against_one_device(jobs.mink, reach=16, steps=5, gradient=5e-6)")
