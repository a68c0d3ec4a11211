"""The model and the voxels that ``voxax tune``, ``explain``, ``bench`` and ``export`` work on."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from voxax import _limits
from voxax.cli.python_target import as_input_error, attribute, load_module
from voxax.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from voxax.geometry import Voxels

_MODELS = ("MinkUNet14", "MinkUNet18", "MinkUNet34")
_VOXEL_SIZE = 0.1


@dataclasses.dataclass(frozen=True)
class Workload:
    """Options that name a model, and the voxels that it runs on."""

    model: str = "MinkUNet18"
    """MinkUNet14, MinkUNet18, MinkUNet34, FILE.py:NAME or package.module:NAME: a model on voxels,
    or a function without arguments that makes one."""
    workload: Literal["lidar", "indoor", "airborne", "surface"] | None = None
    """Recorded scene, shipped with voxax, whose voxels are taken; lidar by default."""
    file: Path | None = None
    """Scan or mesh whose voxels are taken instead of a recorded scene."""
    voxel_size: float | None = None
    """Edge of a voxel of --file, in its units; 0.1 by default."""
    columns: str | None = None
    """Columns of --file where it does not name them (.bin): their number, or x,y,z,intensity."""
    channels: int = 4
    """Number of input channels; the features are random."""
    classes: int = 20
    """Number of output channels of MinkUNet14, MinkUNet18 or MinkUNet34."""
    training: bool = False
    """Include the gradients."""

    def build(self, *, for_accelerator: bool = False) -> Built:
        """Return a function that runs the model, the function's arguments, and a title.

        The voxels are among the arguments. `for_accelerator` gives arrays the sizes that they have
        on GPUs and TPUs, also on a CPU.
        """
        from voxax.geometry import Plan
        from voxax.nn.model_step import step_of

        _limits.CHANNELS.check("--channels", self.channels)
        _limits.CLASSES.check("--classes", self.classes)
        model = model_of(self.model, self.channels, self.classes)
        nnx = importlib.import_module("flax.nnx")
        if self.training and not isinstance(model, nnx.Module):
            raise InputError(
                f"--training needs parameters to differentiate by: {self.model} is no flax.nnx "
                "module"
            )
        voxels, scene = self._voxels()
        plan = Plan.record(model, voxels)
        if for_accelerator:
            plan = dataclasses.replace(plan, on_ladder=False)
        voxels = plan.attach(voxels)
        step = step_of(model, None, self.training, None, None)

        def call(*arguments: Any) -> Any:
            return step.call(*arguments)

        call.__name__ = self.model  # errors name it
        what = "forward and gradients" if self.training else "forward"
        title = (
            f"{self.model}, {what}, on {scene}: {int(voxels.count)} voxels in {voxels.capacity} "
            "rows"
        )
        return Built(call, step.arguments(voxels), title)

    def _voxels(self) -> tuple[Voxels, str]:
        import numpy as np

        from voxax.geometry import host

        if self.file is None:
            from voxax.tuning.occupancy import DEFAULT_KIND, recorded

            if self.voxel_size is not None:
                raise InputError(
                    f"--voxel-size {self.voxel_size}: recorded scenes are voxels already; it "
                    "belongs to --file"
                )
            kind = self.workload or DEFAULT_KIND
            scene, positions, size = f"the recorded scene {kind!r}", recorded(kind) + 0.5, 1.0
        else:
            from voxax.io import read

            if self.workload is not None:
                raise InputError(f"--workload {self.workload} and --file: give one of them")
            positions = read(self.file, columns=self.columns).positions
            size = _VOXEL_SIZE if self.voxel_size is None else self.voxel_size
            _limits.VOXEL_SIZE.check("--voxel-size", size, _limits.LEAST_VOXEL_SIZE)
            # float32 is exact enough only near zero, so whole voxels are subtracted.
            positions = positions - np.floor(positions.min(0) / size) * size
            scene = f"{self.file.name} at {size:g}"
        rng = np.random.default_rng(0)
        features = rng.standard_normal((len(positions), self.channels), np.float32)
        voxels, _ = host.voxelize_on_host(positions, features, size)
        return voxels, scene


@dataclasses.dataclass(frozen=True)
class Built:
    """A function to compile or measure, its arguments, and a title: names of model and voxels."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    title: str


def _found(path: str) -> Callable[..., Any]:
    """Return the model at ``FILE.py:NAME``; a function without arguments is called to make it."""
    module, name = load_module(path, "--model")
    found = attribute(module, name, f"--model {path}")
    if callable(found) and _takes(found, 0):
        with as_input_error(f"calling {name}()"):
            found = found()
    if not callable(found) or isinstance(found, type) or not _takes(found, 1):
        raise InputError(
            f"--model {path} is neither a model on Voxels nor a function without arguments that "
            f"makes one: it is {_described(found)}"
        )
    return found


def _takes(call: Callable[..., Any], number: int) -> bool:
    """Return whether `call` accepts `number` positional arguments."""
    try:
        _signature(call).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return number == 1
    return True


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    if not isinstance(call, type):
        return inspect.signature(call)
    # The metaclass of flax takes any arguments.
    whole = inspect.signature(call.__init__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def _described(value: Any) -> str:
    """Return a description of a value in one line: its name and signature, or its type."""
    name = getattr(value, "__qualname__", type(value).__name__)
    try:
        return f"{name}{_signature(value)}"
    except (TypeError, ValueError):
        return f"of type {type(value).__name__}"


def model_of(name: str, channels: int, classes: int) -> Callable[..., Any]:
    """Return the model that ``--model`` names, a callable on Voxels; see :class:`Workload`."""
    try:
        importlib.import_module("flax.nnx")
    except ImportError as error:
        raise MissingExtraError('models need: pip install "voxax[nn]"') from error
    if ":" in name:
        return _found(name)
    if name not in _MODELS:
        raise InputError(
            f"--model {name} is unknown: give {', '.join(_MODELS)}, FILE.py:NAME or "
            "package.module:NAME"
        )
    from voxax import models

    return getattr(models, name)(channels, classes)
