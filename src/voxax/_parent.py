"""Child processes that end when their parent ends, however it ends."""

from __future__ import annotations

import os
import threading
import time

_SECONDS = 1.0


def end_with(parent: int) -> None:
    """Start a thread that ends this process a second or two after the process ``parent`` ends.

    A killed parent cannot stop its child processes, which would otherwise run on.

    Args:
      parent: ID of the process that started this one.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS)
        os._exit(1)  # sys.exit could wait forever for a lock of another thread

    threading.Thread(target=watch, name="voxax-parent", daemon=True).start()
