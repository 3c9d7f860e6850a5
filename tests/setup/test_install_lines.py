"""Nothing claims a package on PyPI that does not exist."""

import re
import subprocess

from helpers.cli import ROOT

CLAIM = re.compile(r"pip install (-\S+ )*['\"]?pilot[-_]tal")


def test_no_file_installs_pilot_tal_from_pypi():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    found = []
    for name in filter(None, files.split("\0")):
        file = ROOT / name
        if file.suffix in (".py", ".md", ".ipynb", ".sh", ".yml", ".j2", ".toml") and file.is_file():
            text = file.read_text(encoding="utf-8")
            found += [f"{name}: {line}" for line in text.splitlines() if CLAIM.search(line)]
    assert not found
