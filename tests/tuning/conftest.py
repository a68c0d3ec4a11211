"""Restrict tests of requests and measurements to algorithms that every machine has."""

import os

import pytest


@pytest.fixture(autouse=True)
def _portable(portable):
    """Some of these tests name candidates and count them."""


@pytest.fixture(autouse=True)
def _no_requests(monkeypatch):
    """The environment asks for nothing, unless a test lets it."""
    for name in list(os.environ):
        if name.endswith("_ALGO_MODE"):
            monkeypatch.delenv(name)
