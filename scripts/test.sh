#!/usr/bin/env bash
# Sets the project up and runs the whole test suite; further arguments go to pytest.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh" --tests
cd "$root"
# One thread a worker: results do not depend on the number of cores, and two workers do not fight for them.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg
# A file goes to one worker, in the order of the folders: what its tests share is made once.
exec .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
