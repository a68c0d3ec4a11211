#!/usr/bin/env bash
# Everything that needs a GPU, a row at a time: conformance, compute-sanitizer, and the tables.
# Started again it goes on where it was stopped. Without a GPU it says so and ends with status 3.
#
#     benchmarks/gpu/run.sh [--data FOLDER] [--peers PYTHON] [--stages ...] [--only WORDS]
#
# PYTHON chooses the interpreter that has voxax; --peers one that has PyTorch, and perhaps spconv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec "${PYTHON:-python}" benchmarks/gpu/run.py "$@"
