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
datasets=${DATASETS:-cub_lt imagenetr_lt food101_lt}
methods=${METHODS:-l2p dualprompt coda_prompt lae mos}
for dataset in $datasets; do
  echo "== looking for the images and the ViT of $dataset"
  "${pilot_tal[@]}" compare "${methods%% *}" "$dataset" "$@" --dry-run >/dev/null
done
failed=()
for dataset in $datasets; do
  for tasks in ${TASKS:-5 10}; do
    for method in $methods; do
      echo "== $method on $dataset, $tasks tasks"
      status=0
      "${pilot_tal[@]}" compare "$method" "$dataset" tasks="$tasks" "$@" || status=$?
      if [ $status -ge 128 ]; then exit $status; fi  # interrupted
      if [ $status -ne 0 ]; then failed+=("$method on $dataset, $tasks tasks"); fi
    done
  done
done
"${pilot_tal[@]}" report "$output" --output "$output/report/table"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'reproduce_table: not finished: %s\n' "${failed[@]}" >&2
  exit 1
fi
