"""The process that imported voxax: a fork of it may be the first to use a name."""

import os

PID = os.getpid()
