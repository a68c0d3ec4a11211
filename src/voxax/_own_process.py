"""The ID of the process that imported voxax; a forked process has another ID."""

import os

PID = os.getpid()
