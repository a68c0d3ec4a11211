#!/usr/bin/env bash
# Everything that needs a GPU, in the order of its worth: tests of the products, networks, layers,
# the workloads of others, maps, tests of every candidate, compute-sanitizer.
# Killed, it loses one row; started again, it goes on. Without a GPU it ends with status 3.
#
#     benchmarks/gpu/run.sh [--data FOLDER] [--peers PYTHON] [--out FOLDER] [--seconds 1500] ...
#
# PYTHON chooses the interpreter; --peers another one that has PyTorch and perhaps peers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-$(command -v python || command -v python3)}
# voxax need not be installed.
"$python" -c 'import voxax' 2>/dev/null || export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" benchmarks/gpu/run.py "$@"
