#!/usr/bin/env bash
# Runs the paper's whole table on pretrained models (5 methods, 3 datasets, 5 and 10 tasks, CE and TAL, 3 seeds)
# and prints ours beside the paper's numbers. Broken off and started again, it goes on where it was.
#   bash scripts/reproduce_table.sh [key=value …]        e.g. data_root=/data device=cuda output=runs
# METHODS, DATASETS and TASKS narrow it: METHODS="l2p lae" DATASETS=cub_lt TASKS=5 bash scripts/reproduce_table.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
pilot_tal=("$root/.venv/bin/python" -m pilot_tal)
output=runs
for setting in "$@"; do
  case "$setting" in
    output=*) output=${setting#output=} ;;
    --*) echo "reproduce_table: settings are key=value, got $setting" >&2; exit 2 ;;
  esac
done
for dataset in ${DATASETS:-cub_lt imagenetr_lt food101_lt}; do
  for tasks in ${TASKS:-5 10}; do
    for method in ${METHODS:-l2p dualprompt coda_prompt lae mos}; do
      echo "== $method on $dataset, $tasks tasks"
      "${pilot_tal[@]}" compare "$method" "$dataset" tasks="$tasks" "$@"
    done
  done
done
"${pilot_tal[@]}" report "$output" --output "$output/report/table"
