#!/usr/bin/env bash
# Makes .venv beside this script's project and installs the pinned versions. Run again, it does nothing.
# With --tests it also installs what the tests need.
# PYTHON=/path/to/python3.x chooses the interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
stamp="$venv/.installed"
wanted=("$root/requirements.txt")
if [ "${1:-}" = --tests ]; then wanted+=("$root/requirements-test.txt"); fi

fail() { echo "setup: $*" >&2; exit 1; }

fingerprint() { cat "$@" "$root/pyproject.toml" | cksum; echo "$root"; }
is_done() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint "$@")" ]; }

# Done before: the installed versions are the wanted ones and the interpreter still runs.
everything=("$root/requirements.txt" "$root/requirements-test.txt")
if [ -x "$venv/bin/python" ] && { is_done "${wanted[@]}" || { [ -f "${everything[1]}" ] && is_done "${everything[@]}"; }; } \
    && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
  local candidate candidates=(python3 python python3.14 python3.13 python3.12 python3.11 python3.10)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

version_of() { if command -v "$1" >/dev/null 2>&1; then "$1" --version 2>&1 || echo broken; else echo missing; fi; }

python=$(find_python) || fail "Python 3.10 or newer is needed, but '${PYTHON:-python3}' is $(version_of "${PYTHON:-python3}"); install one or set PYTHON=/path/to/python3."

# A .venv without pip (uv makes them so) gets it; one that is broken, moved or of an old Python is made anew.
if [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" && ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  "$venv/bin/python" -m ensurepip >/dev/null 2>&1 || fail "$venv has no pip and 'python -m ensurepip' cannot give it one; remove $venv and run this again."
fi
if [ -d "$venv" ] && ! { [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python"; }; then
  echo "setup: $venv is broken, moved or of an old Python; making it anew"
  rm -rf "$venv"
fi
rm -f "$stamp"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [ ! -d "$venv" ]; then
  echo "setup: making $venv with $("$python" --version 2>&1)"
  "$python" -m venv "$venv" >"$log" 2>&1 || { tail -n 3 "$log" >&2; rm -rf "$venv"; fail "'$python -m venv' failed; on Debian and Ubuntu install the package python3-venv."; }
fi

echo "setup: installing the pinned packages (a few minutes the first time)"
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off "${wanted[@]/#/-r}" >"$log" 2>&1 \
    || ! "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e "$root" >>"$log" 2>&1; then
  grep -i 'error' "$log" | tail -n 3 >&2 || true
  if grep -qiE 'connection|name resolution|timed out|unreachable|proxyerror|from versions: none' "$log"; then
    fail "the package registry cannot be reached, or has nothing for $("$venv/bin/python" --version 2>&1) on this machine; check the network (or pip's index and proxy settings) and run this again."
  fi
  fail "installing the packages of ${wanted[*]##*/} failed (the lines above are pip's); fix that and run this again."
fi

fingerprint "${wanted[@]}" >"$stamp"
echo "setup: done"
