"""A pytest plugin: plants the fault named by ``VOXAX_TEST_FAULT`` before tests are collected."""

import os

import pytest

from mutation.faults import FAULTS

_FAULT = FAULTS[os.environ["VOXAX_TEST_FAULT"]]


def pytest_collection(session):
    del session
    _FAULT.plant()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Cases that are likely to notice the fault come first; none is left out."""
    items.sort(key=lambda item: _FAULT.near not in item.name)
