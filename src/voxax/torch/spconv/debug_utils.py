"""Where spconv leaves what a failing kernel was given."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from voxax.torch.spconv import constants


def spconv_save_debug_data(data: Any) -> None:
    """Pickle ``data`` into the file that the environment's ``SPCONV_DEBUG_SAVE_PATH`` names.

    Prints what it did; a file that cannot be written is no error, so that the caller's own stays.
    """
    path = constants.SPCONV_DEBUG_SAVE_PATH
    if not path:
        print("SPCONV_DEBUG_SAVE_PATH is not set: no debug data is saved")  # noqa: T201
        return
    try:
        with Path(path).open("wb") as file:
            pickle.dump(data, file)
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
        print(f"debug data cannot be saved to {path}: {error}")  # noqa: T201
    else:
        print(f"debug data is saved to {path}")  # noqa: T201
