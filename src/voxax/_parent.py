"""Processes that end when the process that started them does, however that ended."""

from __future__ import annotations

import os
import threading
import time

_SECONDS = 1.0


def end_with(parent: int) -> None:
    """End this process within a second or two after the process ``parent`` has ended.

    A parent that is killed tells its children nothing: they would wait for work, or compile on.

    Args:
      parent: the process that started this one.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS)
        os._exit(1)  # a lock of another thread may never be free

    threading.Thread(target=watch, name="voxax-parent", daemon=True).start()
