"""Restrict tests of requests and measurements to algorithms that every machine has."""

import pytest


@pytest.fixture(autouse=True)
def _portable(portable):
    """Some of these tests name candidates and count them."""
