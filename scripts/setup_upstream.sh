#!/usr/bin/env bash
# Makes the environment in which `pilot-tal upstream` runs your checkout of LAMDA-PILOT, and checks the
# checkout. Nothing is written into the checkout. Run again, it only checks.
#
#   bash scripts/setup_upstream.sh PATH_OF_THE_CHECKOUT [--env DIRECTORY]
#
# The environment is .venv-upstream beside this project's own unless --env names another place.
# PYTHON=/path/to/python3.x chooses the interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
env="$root/.venv-upstream"
repo=""
# timm 0.6.13 is the newest that LAMDA-PILOT's imports allow, and the oldest that imports on Python 3.11.
packages=(torch==2.13.0 torchvision==0.28.0 timm==0.6.13 easydict==1.13 'numpy>=1.26' 'scipy>=1.11'
  'scikit-learn>=1.4' 'tqdm>=4.60' 'pillow>=10' 'safetensors>=0.4.3')

fail() { echo "setup_upstream: $*" >&2; exit 1; }
usage="usage: bash scripts/setup_upstream.sh PATH_OF_THE_CHECKOUT [--env DIRECTORY]"

while [ $# -gt 0 ]; do
  case "$1" in
    --env) [ $# -ge 2 ] || fail "--env needs a directory; $usage"; env=$2; shift 2 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    -*) fail "unknown option '$1'; $usage" ;;
    *) [ -z "$repo" ] || fail "one checkout at a time, got '$repo' and '$1'; $usage"; repo=$1; shift ;;
  esac
done
[ -n "$repo" ] || fail "$usage"
[ -f "$repo/trainer.py" ] && [ -f "$repo/utils/factory.py" ] \
  || fail "'$repo' is not a checkout of LAMDA-PILOT: trainer.py and utils/factory.py are not there."

stamp="$env/.installed-upstream"
if ! { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "${packages[*]}" ] && "$env/bin/python" -c '' 2>/dev/null; }; then
  python=${PYTHON:-$root/.venv/bin/python}
  if [ -z "${PYTHON:-}" ] && ! "$python" -c '' 2>/dev/null; then bash "$root/scripts/setup.sh"; fi
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
    || fail "Python 3.10 or newer is needed, but '$python' is $("$python" --version 2>&1 || echo missing)"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! "$env/bin/python" -m pip --version >/dev/null 2>&1; then
    [ ! -e "$env" ] || [ -f "$env/pyvenv.cfg" ] || fail "'$env' is there already and is not an environment."
    echo "setup_upstream: making $env with $("$python" --version 2>&1)"
    "$python" -m venv --clear "$env" >"$log" 2>&1 || { tail -n 3 "$log" >&2; fail "'$python -m venv' failed."; }
  fi
  echo "setup_upstream: installing ${packages[*]} (a few minutes the first time)"
  if ! "$env/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off \
      "${packages[@]}" >"$log" 2>&1; then
    grep -i 'error' "$log" | tail -n 3 >&2 || true
    fail "installing failed (the lines above are pip's); check the network or pip's settings and run this again."
  fi
  printf '%s' "${packages[*]}" >"$stamp"
fi

"$env/bin/python" -B "$root/pilot_tal/upstream/__main__.py" check "$repo"
program="$root/.venv/bin/pilot-tal"
[ -x "$program" ] || program=pilot-tal
echo "setup_upstream: done; next: $(printf '%q ' "$program" upstream --repo "$repo")--config exps/l2p.json --loss tal --dataset cub_lt"
