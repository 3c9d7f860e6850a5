#!/usr/bin/env bash
# Trains METHOD on DATASET with cross-entropy and with TAL on the same seeds, and reports on the tail:
#   bash scripts/run_ptm.sh METHOD DATASET [key=value …]
#   bash scripts/run_ptm.sh l2p demo_lt            # no download needed
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" -m pilot_tal compare "$@"
