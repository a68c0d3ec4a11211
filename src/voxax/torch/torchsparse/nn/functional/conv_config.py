"""Configure convolutions: TorchSparse's dictionary of options, and its global settings.

Only ``kmap_mode`` and ``downsample_mode`` have an effect here: they decide the output voxels.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from voxax.torch.core.errors import ArgumentError

KMAP_MODES = ("hashmap_on_the_fly", "hashmap")
DOWNSAMPLE_MODES = ("spconv", "minkowski", "1.4")


class Dataflow(Enum):
    """Algorithm of TorchSparse's GPU kernels, without effect here."""

    ImplicitGEMM = 0
    GatherScatter = 1
    FetchOnDemand = 2
    CodedCSR = 3


class ConvMode(Enum):
    """Sorting mode of TorchSparse's GPU kernels, without effect here."""

    mode0 = 0
    mode1 = 1
    mode2 = 2


class AttributeDict(dict[str, Any]):
    """Dictionary whose items can also be read and set as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as missing:
            raise AttributeError(name) from missing

    __setattr__ = dict.__setitem__


_DEFAULT = AttributeDict(
    dataflow=Dataflow.ImplicitGEMM,
    ifsort=False,
    kmap_mode=KMAP_MODES[0],
    downsample_mode=DOWNSAMPLE_MODES[0],
    split_mask_num=1,
    split_mask_num_bwd=3,
    epsilon=0.0,
    mm_thresh=0,
    FOD_fusion=True,
)
_MODES = {"kmap_mode": KMAP_MODES, "downsample_mode": DOWNSAMPLE_MODES}
_state: dict[str, Any] = {"config": None, "conv_mode": ConvMode.mode0}
_state |= {name: _DEFAULT[name] for name in _MODES}


def get_default_conv_config(conv_mode: Any = None, training: bool = False) -> AttributeDict:
    """Return the default configuration that layers read, not a copy; arguments are ignored."""
    del conv_mode, training
    return _DEFAULT


def get_global_conv_config() -> Any:
    """Return the configuration that :func:`set_global_conv_config` set, or None."""
    return _state["config"]


def set_global_conv_config(conv_config: Any) -> None:
    """Set a dictionary of options for all layers that have no configuration of their own.

    Options that ``conv_config`` lacks are added to it with their default values.
    """
    _check_dictionary(conv_config)
    for name, value in _DEFAULT.items():
        conv_config.setdefault(name, value)
    _state["config"] = conv_config


def clear_global_conv_config() -> None:
    """Undo :func:`set_global_conv_config`, so that layers use the default configuration."""
    _state["config"] = None


def modes_of(config: Any) -> tuple[str, str]:
    """Return ``kmap_mode`` and ``downsample_mode`` of a configuration, a dictionary of options.

    None means the global configuration, or the default configuration if that is not set.
    """
    if config is None:
        config = _DEFAULT if _state["config"] is None else _state["config"]
    _check_dictionary(config)
    kmap_mode, downsample_mode = (config.get(name, _DEFAULT[name]) for name in _MODES)
    _check("kmap_mode", kmap_mode, KMAP_MODES)
    _check("downsample_mode", downsample_mode, DOWNSAMPLE_MODES)
    return kmap_mode, downsample_mode


def get_kmap_mode() -> str:
    """Return the mode that :func:`set_kmap_mode` set."""
    return _state["kmap_mode"]


def set_kmap_mode(kmap_mode: str) -> None:
    """Set a mode that no layer reads, as in TorchSparse; layers read their configuration."""
    _check("kmap_mode", kmap_mode, KMAP_MODES)
    _state["kmap_mode"] = kmap_mode


def get_downsample_mode() -> str:
    """Return the mode that :func:`set_downsample_mode` set."""
    return _state["downsample_mode"]


def set_downsample_mode(downsample_mode: str) -> None:
    """Set a mode that no layer reads, as in TorchSparse; layers read their configuration."""
    _check("downsample_mode", downsample_mode, DOWNSAMPLE_MODES)
    _state["downsample_mode"] = downsample_mode


def get_conv_mode() -> ConvMode:
    """Return the mode that :func:`set_conv_mode` set."""
    return _state["conv_mode"]


def set_conv_mode(conv_mode: int | ConvMode) -> None:
    """Set the sorting mode of GPU kernels, which has no effect here."""
    _check("conv_mode", conv_mode, (0, 1, 2, *ConvMode))
    _state["conv_mode"] = ConvMode(conv_mode)


def _check(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ArgumentError(f"{name}={value!r}: expected one of {', '.join(map(str, known))}")


def _check_dictionary(config: Any) -> None:
    if not isinstance(config, dict):
        example = {"kmap_mode": "hashmap"}
        raise ArgumentError(f"config={config!r}: expected a dictionary such as {example}")
