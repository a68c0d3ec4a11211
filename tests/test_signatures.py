"""Public classes and functions name their arguments, in Python and in the reference."""

import enum
import inspect
from pathlib import Path

import pytest

from test_docstrings import public
from voxax.nn.modules import Inject, SparseConvTranspose3d, SubMConv3d

ROOT = Path(__file__).resolve().parents[1]
VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

# Whose arguments another function has, which the caller chooses.
OF_ANOTHER = {
    "check_static": "of the function or the model that it runs",
    "explain": "of the function that it runs",
    "tune": "of the function that it runs",
    "strategies": "of the function that it runs",
    "create": "of the network with that name",
    "load": "of the network with that name",
    "load_encoder": "of PTv3",
    "PTv3Encoder": "of PTv3",
    "Remat.__call__": "of the layer inside",
    "Sequential": "layers, in order",
    "WandbWriter": "of wandb.init",
}
PACKAGES = ("voxax.nn", "voxax.models", "voxax.products", "voxax.explanation")


def chosen() -> dict[str, object]:
    """Classes and functions of the top level, of layers and of networks, by their dotted name."""
    return {
        name: value
        for name, value in public(False).items()
        if name.startswith(PACKAGES) or name.count(".") == 1
        if not (inspect.isclass(value) and issubclass(value, Exception | enum.Enum))
    }


def variadic(value) -> bool:
    return any(p.kind in VARIADIC for p in inspect.signature(value).parameters.values())


def test_every_argument_has_a_name():
    found = set()
    for name, value in chosen().items():
        last = name.rpartition(".")[2]
        found |= {last} if variadic(value) else set()
        if "__call__" in vars(value):
            found |= {f"{last}.__call__"} if variadic(value.__call__) else set()
    assert found == set(OF_ANOTHER)


def test_layers_say_what_they_take():
    given = inspect.signature(SubMConv3d).parameters
    assert list(given)[:3] == ["in_channels", "out_channels", "kernel_size"]
    assert (given["kernel_size"].default, given["fwd_algo"].default) == (3, None)
    assert inspect.signature(SparseConvTranspose3d).parameters["stride"].default == 2
    assert list(inspect.signature(Inject).parameters) == []
    of_call = inspect.signature(SubMConv3d(1, 1)).parameters
    assert list(of_call) == ["voxels", "out_voxels", "kernel_map"]


def test_subclasses_of_users_have_their_own_signature():
    class Own(SubMConv3d):
        def __init__(self, width: int):
            super().__init__(width, width)

    assert list(inspect.signature(Own).parameters) == ["width"]


def test_the_reference_shows_the_same_arguments():
    griffe = pytest.importorskip("griffe", reason="the documentation's packages are not installed")
    extensions = griffe.load_extensions(str(ROOT / "docs" / "public_names.py"))
    options = {"extensions": extensions, "resolve_aliases": True}
    package = griffe.load("voxax", search_paths=[ROOT / "src"], **options)
    other = {}
    for name, value in chosen().items():
        if inspect.isclass(value) and issubclass(value, tuple):  # griffe knows no named tuples
            continue
        shown = [p.name for p in package[name.removeprefix("voxax.")].parameters]
        taken = list(inspect.signature(value).parameters)
        if [n for n in shown if n != "self"] != taken:
            other[name] = shown
    assert other == {}
