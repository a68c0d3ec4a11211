"""Tests that need PyTorch run only when asked for: nothing else may import it."""

import pytest


def pytest_collection_modifyitems(config, items):
    if "torch" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="needs PyTorch: pytest -m torch")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(skip)
