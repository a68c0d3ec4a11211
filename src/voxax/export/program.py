"""Export whole programs to files: a network with its weights and its chosen algorithms.

:func:`export_program` traces a model for one kind of device, which may be absent, and writes
StableHLO (``jax.export``) and the weights. :func:`load_program` needs JAX, but neither the model's
code nor flax nor a tuning cache.

A program for CPUs calls voxax's native kernels by name, so the file contains no memory addresses.
XLA provides anything else that a call needs, such as threads, when the program runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _limits, _native
from voxax._atomic_file import replacing
from voxax.coords import PAD
from voxax.errors import CapacityError, FileFormatError, InputError, MissingExtraError, listed
from voxax.export import executable as executables
from voxax.geometry import Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.input_checks import check_coord_values
from voxax.hardware import HardwareInfo, describe, targeting
from voxax.io.decoding import check_count
from voxax.io.numpy_files import read_array
from voxax.nn.model_step import step_of
from voxax.tuning import Request, algorithms, record_choices

FORMAT = 3
"""Version of the file format."""

_PROGRAM, _WEIGHTS, _ABOUT = "program.stablehlo", "weights.npz", "about.json"
_EXECUTABLE, _SIGNATURE = "executable", "executable.hmac"
# The name of each platform in ``jax.export``, and the name that JAX's devices have.
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
_WRITTEN = (1980, 1, 1, 0, 0, 0)


class Result(NamedTuple):
    """The output of a program for N input rows, with M output voxels of D axes and C channels.

    Attributes:
      coords: ``int32[M, 1 + D]``, batch index and coordinates of the output voxels, no padding.
      features: ``[M, C]``, the features of the output voxels.
      rows: ``int32[N]``, the position of each input row after the program has sorted the input
        voxels. If the model returns the same voxels, as models for segmentation do,
        ``features[rows]`` are the features of the input rows.
    """

    coords: np.ndarray
    features: np.ndarray
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that was loaded from a file and is ready to run.

    Attributes:
      about: the description in the file: platform, device, capacity, channels, ndim, dtype,
        batch_size, the versions that wrote the file, the chosen algorithms, the native kernels
        that the program calls, and the requirements of its executable.
      call: the exported function of ``(weights, coords, features)``; it returns a dict of arrays.
      weights: the arrays of the model's state.
    """

    about: dict[str, Any]
    call: Callable[..., Any] = dataclasses.field(repr=False)
    weights: list[Any] = dataclasses.field(repr=False)

    def __call__(self, coords: Any, features: Any) -> Result:
        """Run the program on distinct voxels in any order.

        Args:
          coords: ``int[N, 1 + D]``, the batch index, then D lattice coordinates, of each voxel.
          features: ``[N, C]``, the features of each voxel.

        Raises:
          InputError: the numbers of rows differ, or the numbers of columns are not those of the
            program; coordinates are not integers or outside ``[-2**30, 2**30)``; a batch index is
            not below the program's batch size; or the features are of another kind than the
            program's dtype, such as floats for a program of integers, or complex numbers.
          CapacityError: there are more rows than the program's capacity, or voxels were lost at a
            level inside the model.
        """
        coords, features = np.asarray(coords), np.asarray(features)
        capacity, channels = self.about["capacity"], self.about["channels"]
        wanted = (*coords.shape[:1], 1 + self.about["ndim"]), (*coords.shape[:1], channels)
        if (coords.shape, features.shape) != wanted:
            raise InputError(
                f"coords of shape {coords.shape} and features of shape {features.shape}: the "
                f"program takes [N, {1 + self.about['ndim']}] and [N, {channels}]"
            )
        takes = jnp.dtype(self.about["dtype"])
        if coords.dtype.kind not in "iu" or not np.can_cast(features.dtype, takes, "same_kind"):
            raise InputError(
                f"coords of {coords.dtype} and features of {features.dtype}: the program takes "
                f"integers and {self.about['dtype']}"
            )
        check_coord_values(coords, self.about["batch_size"])
        number = coords.shape[0]
        if number > capacity:
            raise CapacityError(
                f"{number} voxels for a program of capacity {capacity}: export it with a larger one"
            )
        all_coords = np.full((capacity, coords.shape[1]), PAD, np.int32)
        all_coords[:number] = coords
        all_features = np.zeros((capacity, channels), self.about["dtype"])
        all_features[:number] = features
        out = jax.device_get(self.call(self.weights, all_coords, all_features))
        if int(out["num_dropped"]):
            raise CapacityError(
                f"{int(out['num_dropped'])} voxels were lost inside a program of capacity "
                f"{capacity}: export it with a larger one"
            )
        count = int(out["count"])
        return Result(out["coords"][:count], out["features"][:count], out["rows"][:number])


@functools.partial(checked_operator, on_whole_arrays=False)
def export_program(
    model: Callable[[Voxels], Voxels],
    path: str | Path,
    *,
    capacity: int,
    channels: int,
    platform: str = "cpu",
    device: str | None = None,
    ndim: int = 3,
    batch_size: int = 1,
    dtype: Any = "float32",
    algorithm: Request = None,
    portable: bool = False,
    executable: bool = False,
) -> dict[str, Any]:
    """Trace a model's forward pass for one platform, and write it with its weights to a file.

    For TPUs and GPUs, the algorithms for ``device`` come from the user's tuning cache; convolutions
    that are not in the cache have default algorithms. A program for CPUs has the algorithms that
    ``jax.jit`` chooses in this process, and calls the native kernels if this process has them.

    Args:
      model: a flax.nnx module, or a function whose only argument is voxels.
      path: path of the file, in an existing folder; an existing file is replaced.
      capacity: largest number of voxels that the program takes as input, and that a level of the
        network may have.
      channels: number of channels of the input.
      platform: ``cpu``, ``cuda`` or ``tpu``.
      device: name of a TPU topology such as ``v5e:2x2``. None takes the device of this process if
        it belongs to the platform, else an unknown device.
      ndim: number of spatial axes.
      batch_size: number of scenes in one call.
      dtype: dtype of the input features.
      algorithm: algorithm of the convolutions, see :func:`voxax.algorithms`.
      portable: whether a program for CPUs is plain XLA. It then runs without installed native
        kernels, and takes about 20 times as long.
      executable: whether to store the machine code for this CPU too, signed by this user; see
        :func:`load_program`.

    Returns:
      The description in the file, as in :attr:`Program.about`.

    Raises:
      InputError: the path is a folder, or in a folder that does not exist; the platform, topology
        or dtype is unknown; the model does not return voxels, or calls something that a file cannot
        hold, such as a Python callback; or the user's secret cannot be stored.
      MissingExtraError: ``flatbuffers`` is not installed.

    Examples:
      >>> from voxax import export
      >>> conv = modules.SubMConv3d(4, 8, rngs=nnx.Rngs(0))
      >>> about = export.export_program(conv, "conv.voxax", capacity=256, channels=4)
      >>> loaded = export.load_program("conv.voxax")
      >>> loaded(cells, np.ones((len(cells), 4), np.float32)).features.shape[1]
      8
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the path of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder: make it first, or give another path")
    if platform not in _PLATFORMS:
        raise InputError(f"platform {platform!r}: programs are for {', '.join(_PLATFORMS)}")
    given = {"capacity": capacity, "channels": channels, "ndim": ndim, "batch_size": batch_size}
    for name, limit in _NUMBERS.items():
        limit.check(name, given[name])
    if platform != "cpu" and (portable or executable):
        option = "portable" if portable else "executable"
        raise InputError(f"{option}=True is for platform 'cpu', not for {platform!r}")
    try:
        jnp.dtype(dtype)
    except TypeError as error:
        raise InputError(f"dtype {dtype!r:.80} is unknown: give one such as float32") from error
    hardware = _hardware(_PLATFORMS[platform], device)
    native = platform == "cpu" and not portable and _native.unavailable() is None
    step = step_of(model, None, False, None, None)

    def run(leaves: list[jax.Array], coords: jax.Array, features: jax.Array) -> dict[str, Any]:
        typed = [
            leaf if impl is None else jax.random.wrap_key_data(leaf, impl=impl)
            for leaf, impl in zip(leaves, impls, strict=True)
        ]
        state = jax.tree.unflatten(tree, typed)
        voxels, rows = Voxels.from_coords(
            coords, features, batch_size, capacity=capacity, return_inverse=True
        )
        out = step.call(*state, voxels)
        if not isinstance(out, Voxels):
            raise InputError(f"a program's model returns voxels, this one {type(out).__name__}")
        return {
            "coords": out.coords,
            "features": out.features,
            "count": out.count,
            "num_dropped": out.num_dropped,
            "rows": rows,
        }

    leaves, tree = jax.tree.flatten(step.state)
    # Random keys, such as those of a dropout, are stored in the file as integers.
    impls = [jax.random.key_impl(leaf) if _is_key(leaf) else None for leaf in leaves]
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    shapes = (
        [jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype) for leaf in leaves],
        jax.ShapeDtypeStruct((capacity, 1 + ndim), jnp.int32),
        jax.ShapeDtypeStruct((capacity, channels), jnp.dtype(dtype)),
    )
    with contextlib.ExitStack() as inside:
        if native:
            inside.enter_context(_compat.exporting_native_calls())
            target = hardware
            inside.enter_context(targeting(target, executables.cpu_device()))
        else:
            # A portable program runs on any CPU, so its algorithms are chosen for no machine.
            target = HardwareInfo("any", "unknown") if platform == "cpu" else hardware
            inside.enter_context(targeting(target))
        inside.enter_context(_compat.separate_traces(target))
        if algorithm is not None:
            inside.enter_context(algorithms(forward=algorithm, depthwise_forward=algorithm))
        choices = inside.enter_context(record_choices())
        exported = _exported(jax.jit(run), platform, shapes)
    calls = sorted(set(re.findall(r"custom_call @(voxax_\w+)", exported.mlir_module())))
    about = {
        "format": FORMAT,
        "platform": platform,
        "device": hardware.device_kind,
        "capacity": capacity,
        "channels": channels,
        "ndim": ndim,
        "batch_size": batch_size,
        "dtype": jnp.dtype(dtype).name,
        "jax": jax.__version__,
        "algorithms": [
            f"{c.problem.product} {c.problem.in_channels} -> {c.problem.out_channels}, "
            f"{c.problem.layer.num_offsets} taps: {c.algorithm} {dict(c.parameters)}"
            for c in choices
        ],
        "native_kernels": {name: _native.CALLS[name] for name in calls},
    }
    machine_code = None
    if executable:
        machine_code, about["executable"] = executables.compiled_here(exported, shapes)
    _write(path, exported, leaves, about, machine_code)
    return about


def load_program(
    path: str | Path, *, executable: bool = False, unsafe_unsigned_executable: bool = False
) -> Program:
    """Load a program that :func:`export_program` wrote, from a file that you trust.

    A damaged file raises an error. There is no protection against a carefully forged file: MLIR's
    bytecode reader, which reads the program, is not hardened, and may end the process.

    Args:
      path: path of the file.
      executable: whether to run the machine code in the file instead of compiling the program. JAX
        stores the code as a pickle, which may run anything when it is read. It is therefore read
        only if this user wrote it: the export signs it (HMAC) with a secret in the cache directory.
      unsafe_unsigned_executable: whether to read the pickle without checking who wrote it.

    Raises:
      FileFormatError: the file does not exist, has another format, or is broken: a part is
        compressed, the program has another checksum, a number exceeds its limit, the weights or
        the program differ from the description, or the program calls functions that voxax does not
        export.
      InputError: this process lacks the program's platform, or the same version of its native
        kernels. With ``executable``: the file has no executable, or the executable is for another
        CPU or version of JAX, or was not signed by this user.
      MissingExtraError: ``flatbuffers`` is not installed.
    """
    if unsafe_unsigned_executable and not executable:
        raise InputError("unsafe_unsigned_executable=True is for executable=True")
    with _reading(path), zipfile.ZipFile(path) as archive:
        described = _member(path, archive, _ABOUT)
        about = _checked_about(path, json.loads(described))
        program, stored = (_member(path, archive, name) for name in (_PROGRAM, _WEIGHTS))
        # On broken bytecode MLIR can crash, or loop forever.
        if hashlib.sha256(program).hexdigest() != about["program_sha256"]:
            raise FileFormatError(f"{path}: its program is not the one that was written")
        machine_code = signature = None
        if executable and "executable" in about:
            machine_code = _member(path, archive, _EXECUTABLE)
            if _SIGNATURE in archive.namelist():
                signature = _member(path, archive, _SIGNATURE)
    try:
        device = jax.devices(about["platform"])[0]
    except RuntimeError as error:
        raise InputError(
            f"{path} is for {about['platform']}, which this process has not: {error}"
        ) from error
    reason = _native.refusal(about.get("native_kernels", {}))
    if reason is not None:
        raise InputError(
            f"{path} calls voxax's native kernels, and cannot here: {reason}; or export it again, "
            "with portable=True (voxax export --portable) for machines without them"
        )
    with _reading(path):
        weights = _weights(Path(path), stored, about["weight_dtypes"])
    if machine_code is not None:
        executables.check_runs_here(about["executable"])
        if not unsafe_unsigned_executable:
            reason = executables.distrust(signature, described, machine_code)
            if reason is not None:
                raise InputError(
                    f"the executable in {path} is a pickle, which may run any code, and {reason}: "
                    "load_program(path) compiles the program of the same file instead; "
                    "unsafe_unsigned_executable=True reads it all the same"
                )
        call = executables.loaded(machine_code, len(weights))
        return Program(about, call, jax.device_put(weights, device))
    if executable:
        raise InputError(
            f"{path} holds no executable: export it with executable=True (voxax export "
            "--executable), or load it without"
        )
    with _needing_flatbuffers(), _reading(path):
        exported = jax.export.deserialize(bytearray(program))
        _check_program(path, exported, about, weights)
    return Program(about, jax.jit(exported.call), jax.device_put(weights, device))


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Convert an error in the ``with`` block to a :class:`voxax.FileFormatError` that names `path`.

    A FileFormatError, and an ImportError for a missing library, pass unchanged.
    """
    try:
        yield
    except (FileFormatError, ImportError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileFormatError(f"{path} is no program that voxax exported: {reason}") from error
    except Exception as error:  # the decoders of flatbuffers, zip and MLIR raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise FileFormatError(f"{path} is no program that voxax exported: {reason}") from error


def _member(path: str | Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of the member `name` of a program's file, the zip file `archive` at `path`.

    voxax stores members uncompressed, so no member can be larger than the file.

    Raises:
      FileFormatError: the member is compressed.
    """
    found = archive.getinfo(name)
    if found.compress_type != zipfile.ZIP_STORED or found.file_size != found.compress_size:
        raise FileFormatError(
            f"{path}: its part {name} of {found.compress_size} bytes claims to be packed from "
            f"{found.file_size}; voxax packs no part of a program"
        )
    check_count(Path(path), f"bytes of {name}", found.file_size, 1, Path(path).stat().st_size)
    return archive.read(found)


# Entries of the description that are numbers, with their limits.
_NUMBERS = {
    "capacity": _limits.PROGRAM_ROWS,
    "channels": _limits.CHANNELS,
    "ndim": _limits.Limit(4, "voxels have at most four axes"),
    "batch_size": _limits.SCENES,
}


def _checked_about(path: str | Path, about: Any) -> dict[str, Any]:
    """Check the types and limits in `about`, the description in a program's file, and return it.

    Raises:
      FileFormatError: a value is missing or not allowed; the message names the file `path`.
    """
    if not isinstance(about, dict):
        raise FileFormatError(f"{path}: its description is no object")
    if about.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} has format {about.get('format')!r:.80}, this version reads {FORMAT}: export "
            "it again"
        )
    needs, kernels = about.get("executable", {}), about.get("native_kernels", {})
    dtypes = about.get("weight_dtypes")
    try:
        for name, limit in _NUMBERS.items():
            limit.check(name, about.get(name))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error
    fine = {
        "platform": about.get("platform") in _PLATFORMS,
        "dtype": _is_dtype(about.get("dtype")),
        "weight_dtypes": isinstance(dtypes, list) and all(map(_is_dtype, dtypes)),
        "program_sha256": isinstance(about.get("program_sha256"), str),
        "native_kernels": isinstance(kernels, dict)
        and all(isinstance(version, int) for version in kernels.values()),
        "executable": isinstance(needs, dict)
        and all(isinstance(needs.get(n, ""), str) for n in ("jaxlib", "machine"))
        and isinstance(needs.get("instructions", []), list)
        and (not needs or {"jaxlib", "machine", "instructions"} <= set(needs)),
    }
    for name, is_fine in fine.items():
        if not is_fine:
            raise FileFormatError(f"{path}: its description has {name} = {about.get(name)!r:.200}")
    return about


def _is_dtype(name: Any) -> bool:
    try:
        return isinstance(name, str) and jnp.dtype(name).kind in "biufcV"
    except TypeError:
        return False


def _weights(path: Path, stored: bytes, dtypes: list[str]) -> list[np.ndarray]:
    """Read the weights in `stored`, the bytes of a ``.npz`` file, as arrays of the given `dtypes`.

    Their bits are reinterpreted, because NumPy's files do not support bfloat16.
    """
    weights = []
    with zipfile.ZipFile(BytesIO(stored)) as archive:
        for number, dtype in enumerate(dtypes):
            data = BytesIO(_member(path, archive, f"w{number}.npy"))
            weights.append(read_array(path, data, f"weight {number}").view(jnp.dtype(dtype)))
    return weights


def _check_program(
    path: str | Path, exported: Any, about: dict[str, Any], weights: list[np.ndarray]
) -> None:
    """Raise FileFormatError if the arguments or results of a program do not match `about`.

    `exported` is the program, `about` the description in its file, and `weights` the program's
    first arguments. Also raise it if a program for CPUs makes custom calls other than those of
    voxax's native kernels and those that ``jax.export`` allows.
    """
    rows, axes = about["capacity"], 1 + about["ndim"]
    wanted = [
        *((w.shape, w.dtype) for w in weights),
        ((rows, axes), np.dtype(np.int32)),
        ((rows, about["channels"]), jnp.dtype(about["dtype"])),
    ]
    found = [(aval.shape, np.dtype(aval.dtype)) for aval in exported.in_avals]
    platforms = [_PLATFORMS[about["platform"]], about["platform"]]
    results = jax.tree.structure(dict.fromkeys(executables.RESULT, 0))
    fits = found == wanted and exported.out_tree == results
    if not fits or not set(exported.platforms) & set(platforms):
        raise FileFormatError(
            f"{path}: its program takes or returns other arrays than its description tells"
        )
    allowed = {*_native.CALLS, *_compat.stable_custom_calls()}
    calls = set(re.findall(r"custom_call @([\w.]+)", exported.mlir_module()))
    if about["platform"] == "cpu" and not calls <= allowed:
        raise FileFormatError(
            f"{path}: its program calls {listed(sorted(calls - allowed))}, which voxax does not "
            "export"
        )


def _exported(function: Any, platform: str, shapes: tuple[Any, ...]) -> Any:
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _native.CALLS]
    try:
        return jax.export.export(function, platforms=[platform], disabled_checks=allowed)(*shapes)
    except NotImplementedError as error:
        if "host_callbacks" not in str(error):
            raise
        raise InputError(
            "the model calls Python back, which a file cannot hold: leave out jax.pure_callback, "
            "jax.debug.print and their like"
        ) from error
    except ValueError as error:
        calls = sorted(set(re.findall(r"custom_call @(\w+)", str(error))))
        if "custom calls" not in str(error) or not calls:
            raise
        raise InputError(
            f"the model calls {', '.join(calls)}, which a file cannot hold: other versions of JAX "
            "may not have it"
        ) from error


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _hardware(platform: str, device: str | None) -> HardwareInfo:
    if device is not None:
        if platform != "tpu":
            raise InputError(f"device {device!r} is the topology of a TPU, not of a {platform}")
        return describe(device)
    here = describe(executables.cpu_device()) if platform == "cpu" else describe()
    return here if here.platform == platform else HardwareInfo(platform, "unknown")


def _write(
    path: Path, exported: Any, leaves: list[Any], about: dict[str, Any], machine_code: bytes | None
) -> None:
    with _needing_flatbuffers():
        program = bytes(exported.serialize())
    arrays = [np.asarray(leaf) for leaf in leaves]
    about["program_sha256"] = hashlib.sha256(program).hexdigest()
    about["weight_dtypes"] = [array.dtype.name for array in arrays]
    plain = [a.view(np.uint16) if a.dtype == jnp.bfloat16 else a for a in arrays]
    stored = BytesIO()
    named: dict[str, Any] = {f"w{i}": array for i, array in enumerate(plain)}
    np.savez(stored, **named)
    parts = {
        _ABOUT: json.dumps(about, indent=1).encode(),
        _PROGRAM: program,
        _WEIGHTS: stored.getvalue(),
    }
    if machine_code is not None:
        parts[_EXECUTABLE] = machine_code
        # The signature includes the description, which has the arguments of the executable.
        parts[_SIGNATURE] = executables.signed(parts[_ABOUT], machine_code)
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _WRITTEN), data)


@contextlib.contextmanager
def _needing_flatbuffers() -> Any:
    try:
        yield
    except ImportError as error:
        raise MissingExtraError("exported programs need: pip install flatbuffers") from error
