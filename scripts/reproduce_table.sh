#!/usr/bin/env bash
# Runs the paper's whole table on pretrained models (5 methods, 3 datasets, 5 and 10 tasks, CE and TAL, 3 seeds)
# and prints ours beside the paper's numbers. If interrupted, the same command resumes.
#   bash scripts/reproduce_table.sh [key=value …] [--dry-run] [--quick] [--slurm …]
#   e.g. data_root=/data gpus=0,1 output=runs
# METHODS, DATASETS and TASKS narrow it: METHODS="l2p lae" DATASETS=cub_lt TASKS=5 bash scripts/reproduce_table.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
list() { echo "$*" | tr -s ' ,' ','; }
[[ " $*" == *" losses="* ]] || set -- losses=ce,tal "$@"
[[ " $*" == *" references="* ]] || set -- references=none "$@"
# shellcheck disable=SC2086
exec "$root/.venv/bin/python" -m pilot_tal compare "$(list ${METHODS:-l2p dualprompt coda_prompt lae mos})" \
  "$(list ${DATASETS:-all})" tasks="$(list ${TASKS:-5 10})" "$@"
