"""The number of the process that imported voxax, which a fork compares with its own."""

import os

PID = os.getpid()
