"""Networks of ``voxax.models`` with weights from a file, for ``voxax segment`` and ``detect``."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from voxax import _limits, models
from voxax.detection import Objects, Region
from voxax.errors import FileFormatError, InputError, check_known
from voxax.geometry import Plan, Voxels
from voxax.interop.checkpoint_file import check_place
from voxax.io import PointCloud
from voxax.io.argoverse2 import ARGOVERSE2_CLASSES
from voxax.io.kitti_objects import KITTI_CLASSES
from voxax.io.mean_features import MeanFeatures
from voxax.io.nuscenes import LIDARSEG_CLASSES, NUSCENES_CLASSES
from voxax.io.s3dis import S3DIS_CLASSES
from voxax.io.scannet import SCANNET200_CLASS_NAMES, SCANNET_CLASS_NAMES
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES
from voxax.models.registry import VARIANTS

CLASSES = {
    "argoverse2": ARGOVERSE2_CLASSES,
    "kitti": KITTI_CLASSES,
    "nuscenes": NUSCENES_CLASSES,
    "nuscenes_lidarseg": LIDARSEG_CLASSES,
    "s3dis": S3DIS_CLASSES,
    "scannet": SCANNET_CLASS_NAMES,
    "scannet200": SCANNET200_CLASS_NAMES,
    "semantic_kitti": SEMANTIC_KITTI_CLASS_NAMES,
}
"""Class names by data set."""


def check_choice(checkpoint: Any, network: str | None, **needed: Any) -> None:
    """Raise InputError unless options name a checkpoint, or a network with the options it needs.

    Args:
      checkpoint: value of ``--checkpoint``, or None.
      network: value of ``--network``, or None.
      needed: options that a network needs and a checkpoint forbids, by name; None if not given.
    """
    options = {f"--{name.replace('_', '-')}": value for name, value in needed.items()}
    if (checkpoint is None) == (network is None):
        raise InputError(
            "give either --checkpoint, a folder that voxax trained into, or --network with "
            f"{' and '.join(options)}"
        )
    if network is None:
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise InputError(f"{', '.join(given)}: the checkpoint contains it; leave it out")
    else:
        missing = [name for name, value in options.items() if value is None]
        if missing:
            raise InputError(f"--network {network} needs {' and '.join(missing)} too")


def class_names(given: str) -> tuple[str, ...]:
    """Return class names from a key of ``CLASSES``, a number of classes, or a list with commas."""
    if given in CLASSES:
        return CLASSES[given]
    if given.isdecimal():
        count = int(given[:20])
        _limits.CLASSES.check("--classes", count)
        names = tuple(f"class {number}" for number in range(count))
    else:
        names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"--classes {given!r} must be {', '.join(CLASSES)}, a number of classes, or different "
            "names with commas between"
        )
    return names


def numbers(option: str, given: str, count: int) -> tuple[float, ...]:
    """Return the `count` comma-separated finite numbers in the text `given`.

    Raises:
      InputError: the text is something else. The message names `option`.
    """
    try:
        values = tuple(float(word) for word in given.split(","))
    except ValueError:
        values = ()
    if len(values) != count or not np.isfinite(values).all():
        raise InputError(f"{option} {given!r} must be {count} numbers with commas between")
    return values


def voxel_sides(given: str) -> tuple[float, ...]:
    """Return the three edge lengths of a voxel from a text with one number, or three."""
    sides = numbers("--voxel-size", given, 3 if "," in given else 1)
    for side in sides:
        _limits.VOXEL_SIZE.check("--voxel-size", side, _limits.LEAST_VOXEL_SIZE)
    return sides * 3 if len(sides) == 1 else sides


def _is_detector(name: str) -> bool:
    build = VARIANTS[name]
    kind = build.func if isinstance(build, functools.partial) else build
    return isinstance(kind, type) and issubclass(kind, models.DETECTORS)


def detector_networks() -> tuple[str, ...]:
    """Return the names of registered networks that find boxes."""
    return tuple(filter(_is_detector, models.list()))


def voxel_networks() -> tuple[str, ...]:
    """Return the names of registered networks that return logits of voxels."""
    return tuple(name for name in models.list() if not _is_detector(name))


def made(
    network: str,
    in_channels: int,
    num_classes: int,
    options: Mapping[str, Any],
    build: Callable[..., nnx.Module] | None = None,
) -> nnx.Module:
    """Return a network with random weights, which are the same in every call.

    Args:
      network: name in ``voxax.models.list()``. With `build` it appears only in messages.
      in_channels: number of input channels.
      num_classes: number of classes.
      options: further keyword arguments of the network's class.
      build: function of ``(in_channels, num_classes, **options)`` that makes the network; None
        takes :func:`voxax.models.create`.

    Raises:
      InputError: the network does not take the options.
    """
    check_sizes(network, options)
    options = {"rngs": nnx.Rngs(0), **options}  # the same weights, whatever was built before
    try:
        if build is not None:
            return build(in_channels, num_classes, **options)
        return models.create(network, in_channels=in_channels, num_classes=num_classes, **options)
    except (OverflowError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        given = {name: value for name, value in options.items() if name != "rngs"}
        raise InputError(f"{network} does not take the options {given}: {error}") from error


# Options that are numbers of layers; other options are sizes of layers.
_DEPTHS = ("blocks", "layers", "depth", "encoder_depths", "decoder_depths")


def check_sizes(network: str, options: Mapping[str, Any]) -> None:
    """Raise :class:`voxax.InputError` if a number in the options is too large for any network.

    The options may come from an untrusted checkpoint.
    """
    for name, given in options.items():
        limit = _limits.BLOCKS if name in _DEPTHS else _limits.SIZES
        limit = _limits.WIDTH if name == "width" else limit
        for number in _numbers(given):
            own = limit if isinstance(number, int) else limit._replace(most=float(limit.most))
            own.check(f"{network}: {name}", number, -limit.most)


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Mapping):
        yield from (found for own in value.values() for found in _numbers(own))
    elif isinstance(value, list | tuple):
        yield from (found for own in value for found in _numbers(own))


def loaded(
    network: str,
    weights: str,
    in_channels: int,
    num_classes: int,
    options: str,
    detectors: bool = False,
    source: str | None = None,
    **more: Any,
) -> nnx.Module:
    """Return a network with the weights of a file, in evaluation mode.

    Args:
      network: name of the network.
      weights: path of the weights, or ``hf://owner/name/file``.
      in_channels: number of input channels.
      num_classes: number of classes.
      options: arguments of the network's class in TOML, such as ``stem=16, width=0.5``.
      detectors: True if the network must find boxes; False if it must label points.
      source: codebase that wrote the weights, see :func:`voxax.models.load`; None to detect it.
      more: further arguments of the network's class.

    Raises:
      InputError: the network is unknown or for another task, or the options are wrong.
      FileFormatError: missing or invalid weights.
    """
    try:
        arguments = tomllib.loads(f"all = {{ {options} }}")["all"] | more
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"--options {options!r} is no TOML: write it as stem=16, channels=[8, 8] ({error})"
        ) from error
    check_known("network", network, models.list())
    if _is_detector(network) != detectors:
        finds, other = ("no boxes", "segment") if detectors else ("boxes", "detect")
        raise InputError(f"{network} finds {finds}: `voxax {other}` takes it")
    try:
        check_place(weights)
        model = made(network, in_channels, num_classes, arguments)
        models.load(model, weights, source=source)
    except FileNotFoundError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(
            f"no file {weights}: give the path of .safetensors or PyTorch weights, or "
            "hf://owner/name/file"
        ) from error
    model.eval()
    return model


class Published:
    """Base class of networks with weights from a file.

    `preparation` turns a cloud into an example with voxels. `classes` is the argument of
    :func:`class_names`. `network`, `weights`, `options` and `more` are arguments of :func:`loaded`.
    """

    def __init__(
        self,
        network: str,
        weights: str,
        classes: str,
        preparation: MeanFeatures,
        options: str,
        **more: Any,
    ) -> None:
        self.class_names, self.preparation = class_names(classes), preparation
        sizes = preparation.num_channels, len(self.class_names)
        self.model = loaded(network, weights, *sizes, options, **more)
        graph, self._state = nnx.split(self.model)
        self._plan: Plan | None = None
        self._run = jax.jit(lambda state, v: nnx.merge(graph, state, copy=True)(v))

    def output(self, voxels: Voxels) -> Any:
        """Return the network's output for `voxels`, to which kernel maps are attached first."""
        plan = self._plan = self._plan or Plan.record(self.model, voxels)
        planned = plan.attach(voxels, capacity=plan.capacity(int(voxels.count)))
        # Wait here, because without memory NumPy would end the process instead of raising.
        return jax.block_until_ready(self._run(self._state, planned))


def _features(attributes: str) -> tuple[str, ...]:
    return tuple(attributes.replace(",", " ").split())


class PublishedSegmenter(Published):
    """Segmentation network with weights from a file; arguments are options of ``voxax segment``."""

    def __init__(
        self,
        network: str,
        signed_colors: bool,
        source: str | None,
        options: str,
        *,
        weights: str,
        classes: str,
        voxel_size: str,
        attributes: str,
    ) -> None:
        sides = voxel_sides(voxel_size)
        preparation = MeanFeatures(sides, _features(attributes), signed_colors=signed_colors)
        super().__init__(network, weights, classes, preparation, options, source=source)
        self.voxel_size, self.num_voxels = max(sides), 0

    def logits(self, cloud: PointCloud) -> np.ndarray:
        """Return the logits of the N points of a cloud, ``float32[N, classes]``."""
        example = self.preparation(cloud)
        self.num_voxels = int(example.voxels.count)
        found = self.output(example.voxels)
        found.raise_if_overflowed()
        return np.asarray(found.features, np.float32)[example.inverse]


class PublishedDetector(Published):
    """Detector with weights from a file; the arguments are options of ``voxax detect``."""

    def __init__(
        self,
        network: str,
        source: str | None,
        options: str,
        min_score: float,
        *,
        weights: str,
        classes: str,
        voxel_size: str,
        region: str,
        attributes: str,
    ) -> None:
        corners = numbers("--region", region, 6)
        self.region = Region(corners[:3], corners[3:], voxel_sides(voxel_size))
        low, high, self.min_score = self.region.low, self.region.high, min_score
        preparation = MeanFeatures(self.region.voxel_size, _features(attributes), low, high)
        more = {"source": source, "detectors": True, "grid": self.region.grid}
        super().__init__(network, weights, classes, preparation, options, **more)

    def __call__(self, cloud: PointCloud) -> Objects:
        """Return the predicted boxes of a scan, with class names and scores."""
        (found,) = models.found_boxes(
            self.output(self.preparation(cloud).voxels),
            self.region,
            num_classes=len(self.class_names),
            groups=getattr(self.model, "groups", None),
            min_score=self.min_score,
        )
        kept = np.asarray(found.valid)
        names = np.asarray(self.class_names)[np.asarray(found.classes)[kept]]
        return Objects(np.asarray(found.boxes)[kept], names, np.asarray(found.scores)[kept])
