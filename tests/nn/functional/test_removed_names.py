"""Names that were removed say what takes their place, and that exists."""

import re

import pytest

from recipes import PAGE, recipe
from voxax.errors import RemovedNameError
from voxax.nn import functional, modules, removed

NAMES = [
    *((functional, name, text) for name, text in removed.FUNCTIONS.items()),
    *((modules, name, text) for name, text in removed.MODULES.items()),
]


@pytest.mark.parametrize(("package", "name", "text"), NAMES, ids=[name for _, name, _ in NAMES])
def test_use_names_the_replacement(package, name, text):
    with pytest.raises(RemovedNameError, match=re.escape(f"{name} was removed: {text}")):
        getattr(package, name)
    with pytest.raises(ImportError, match=re.escape(text)):
        exec(f"from {package.__name__} import {name}", {})


@pytest.mark.parametrize("text", sorted({text for _, _, text in NAMES}))
def test_replacement_exists(text):
    name, heading = re.search(r"recipe (\w+) under '([^']+)'", text).groups()
    assert callable(recipe(name))
    assert re.search(rf"^##+ {re.escape(heading)}$", PAGE.read_text(), re.MULTILINE)
    for function in re.findall(r"call (\w+)", text):
        assert callable(getattr(functional, function))
    for module in re.findall(r"use (\w+)", text):
        assert callable(getattr(modules, module))


@pytest.mark.parametrize("package", [functional, modules], ids=["functional", "modules"])
def test_other_names_are_attribute_errors(package):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
