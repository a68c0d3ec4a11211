"""``voxax cache`` manages two caches on disk: the tuner's measurements and compiled programs."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from voxax.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from voxax.hardware import KeptPrograms
    from voxax.tuning.cache import Store
    from voxax.tuning.entry import Entry


_Device = Annotated[str | None, tyro.conf.arg(metavar="DEVICE")]


@dataclasses.dataclass(frozen=True)
class List:
    """List the tuner's cache file of each device, and the number of compiled programs."""

    def __call__(self) -> int:
        from voxax.cli.progress import print_table
        from voxax.tuning.cache import read_file
        from voxax.tuning.entry import PREDICTED, jaxlib_version

        rows = []
        for path in _files():
            found = read_file(path, path.stem)
            now = sum(place in (jaxlib_version(), PREDICTED) for _, place in found.store)
            count = found.problem or f"{now}"
            others = len(found.store) - now
            size = f"{path.stat().st_size / 1024:.1f} KiB"
            rows.append((path.stem, count, f"{others}", size, str(path)))
        if rows:
            names = ("device", "entries", "of other jaxlibs", "size", "file")
            print_table(names, rows, f"jaxlib {jaxlib_version()}")
        else:
            print(f"no tuning cache in {_folder()}")
        print(_told(_programs()))
        return 0


@dataclasses.dataclass(frozen=True)
class Show:
    """Show the two fastest algorithms for each measured convolution on a device."""

    device: tyro.conf.Positional[_Device] = None
    """Name of the device in `voxax cache list`; by default this machine's first device."""

    def __call__(self) -> int:
        from voxax.cli.progress import print_table
        from voxax.hardware import describe
        from voxax.tuning.cache import device_name, shipped

        device = device_name(describe()) if self.device is None else _checked(self.device)
        store = {**shipped(device), **_stored(device)}
        if not store:
            print(f"nothing is known about {device} in {_folder()}")
            return 0
        names = ("problem", "winner", "ms", "runner-up", "ms", "sample", "date", "jaxlib")
        rows = []
        for (key, _), entry in sorted(store.items()):
            first, second = ([*entry.ranked(), None, None])[:2]
            sample = entry.sample + ("" if entry.source == "measured" else f" ({entry.source})")
            made = entry.when[:10], entry.jaxlib
            rows.append((key, *_cells(first), *_cells(second), sample, *made))
        print_table(names, rows, device)
        return 0


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the tuner's measurements of all devices, or of one device, to one file."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """File to write."""

    device: _Device = None
    """Name of the only device to export, from `voxax cache list`."""

    def __call__(self) -> int:
        from voxax.tuning.cache import document, store_to_json

        names = [path.stem for path in _files()] if self.device is None else [_checked(self.device)]
        stores = {name: _stored(name) for name in names}
        count = sum(map(len, stores.values()))
        if count == 0:
            what = "any device" if self.device is None else self.device
            raise InputError(f"{_folder()} has no entries of {what}: nothing to export")
        devices = {name: store_to_json(store) for name, store in stores.items()}
        with _as_input_error(f"{self.file} cannot be written"):
            self.file.write_text(document(devices=devices))
        print(f"{count} entries of {', '.join(stores)}: {self.file}")
        return 0


@dataclasses.dataclass(frozen=True)
class Import:
    """Merge an exported file or another cache file into this machine's cache."""

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """File that `voxax cache export` wrote, or a cache file."""

    def __call__(self) -> int:
        from voxax.tuning.cache import save_file

        for device, (store, refused) in _read_export(self.file).items():
            mine = _stored(device)
            added = {version: _merged(mine.get(version), e) for version, e in store.items()}
            changed = sum(mine.get(version) != entry for version, entry in added.items())
            with _as_input_error(f"{_folder()} cannot be written"):
                save_file(_folder() / f"{device}.json", device, added)
            known = f", {len(added) - changed} were known" if changed < len(added) else ""
            print(f"{device}: {changed} entries came in{known}, {len(refused)} were refused")
            for reason in refused[:5]:
                print(f"  refused {reason}")
        return 0


@dataclasses.dataclass(frozen=True)
class Clear:
    """Delete the tuner's measurements and the compiled programs on this machine."""

    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete without asking."""

    def __call__(self) -> int:
        from voxax.hardware import forget_programs
        from voxax.tuning.cache import forget_passed, remove_file

        paths, programs = _files(), _programs()
        if not paths and not programs.number:
            forget_passed()
            print(f"no tuning cache in {_folder()}, and {_told(programs)}")
            return 0
        if not self.yes:
            if not sys.stdin.isatty():
                raise InputError(
                    "clear asks before it deletes, and no terminal is attached: give --yes"
                )
            for path in paths:
                print(path)
            print(_told(programs))
            if input(
                f"Delete {len(paths) + programs.number} files? [y/N] "
            ).strip().lower() not in ("y", "yes"):
                print("nothing was deleted")
                return 0
        for path in paths:
            with _as_input_error(f"{path} cannot be deleted"):
                remove_file(path)
            print(f"deleted {path}")
        with _as_input_error(f"the programs in {programs.folder} cannot be deleted"):
            if number := forget_programs():
                print(f"deleted {number} compiled programs in {programs.folder}")
        forget_passed()
        return 0


_Action = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Import, tyro.conf.subcommand("import")]
    | Annotated[Clear, tyro.conf.subcommand("clear")]
)


def cache(action: Annotated[_Action, tyro.conf.arg(name="")]) -> int:
    """Manage the tuner's measurements and the compiled programs on this machine."""
    return action()


@contextlib.contextmanager
def _as_input_error(what: str) -> Iterator[None]:
    """Return a context in which an ``OSError`` is re-raised as InputError.

    The message is `what`, such as ``FILE cannot be read``, a colon and the error's own reason.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from error


def _folder() -> Path:
    from voxax.hardware import blocked, cache_dir

    folder = cache_dir() / "tuning"
    if (reason := blocked(folder)) is not None:
        raise InputError(reason)
    return folder


def _programs() -> KeptPrograms:
    from voxax.hardware import kept_programs

    with _as_input_error("the compiled programs cannot be listed"):
        return kept_programs()


def _told(programs: KeptPrograms) -> str:
    if not programs.number:
        return f"no compiled programs in {programs.folder}"
    size = f"{programs.size / 2**20:.1f} MiB"
    return f"{programs.number} compiled programs, {size}, in {programs.folder}"


def _files() -> list[Path]:
    from voxax.tuning.cache import is_device

    return sorted(path for path in _folder().glob("*.json") if is_device(path.stem))


def _merged(mine: Entry | None, other: Entry) -> Entry:
    """Return the merged tuner entry of one convolution, which has the entries `mine` and `other`.

    The entry with the older time is merged with the newer one by :meth:`Entry.merged`. If `mine` is
    None, the result is `other`.
    """
    if mine is None:
        return other
    older, newer = (mine, other) if other.time() > mine.time() else (other, mine)
    return older.merged(newer)


def _stored(device: str) -> Store:
    from voxax.tuning.cache import read_file

    path = _folder() / f"{device}.json"
    found = read_file(path, device)
    if found.problem is not None:
        raise FileFormatError(
            f"{path} is {found.problem} ({found.reason}): remove it, or let the next tuning run "
            "set it aside"
        )
    return found.store


def _checked(device: str) -> str:
    from voxax.tuning.cache import is_device

    if not is_device(device):
        raise InputError(f"{device!r} is not a device's name: see `voxax cache list`")
    return device


def _read_export(path: Path) -> dict[str, tuple[Store, list[str]]]:
    """Read an exported file; return ``{device name: (valid entries, messages)}``.

    There is a message for each invalid entry, which is left out.
    """
    from voxax._bounded_file import read_bounded
    from voxax.tuning import cache as form

    try:
        with _as_input_error(f"{path} cannot be read"):
            content, _ = read_bounded(path, form.MAX_BYTES)
        values = form.parse_document(content)
        devices = values.get("devices", {values.get("device"): values.get("entries")})
        if not isinstance(devices, Mapping) or not all(map(form.is_device, devices)):
            raise ValueError("its devices have no proper names")
        return {device: form.entries_of(entries) for device, entries in devices.items()}
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise FileFormatError(f"{path} is not what `voxax cache export` writes: {error}") from error


def _cells(measured: Any) -> tuple[str, str]:
    if measured is None:
        return "-", "-"
    return str(measured), f"{1e3 * measured.seconds:.4g}"
