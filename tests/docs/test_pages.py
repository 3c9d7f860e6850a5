"""Every page says first what it is for and gives a command; links from the README work on a code host.

Links inside docs/, and the Python names, are checked by `mkdocs build --strict` in `.ci/run`.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from helpers.cli import ROOT
from markdown_it import MarkdownIt

from pilot_tal.losses import LOSSES

PAGES = sorted(ROOT.glob("docs/**/*.md"))


def tokens(page: Path):
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    found = tokens(page)
    titles = [b.content for a, b in pairwise(found) if a.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    inline = [child for token in tokens(page) for child in token.children or ()]
    hrefs = [child.attrs.get("href") or child.attrs.get("src") for child in inline]
    return [str(href) for href in hrefs if href and not re.match(r"[a-z]+:", str(href))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_starts_with_its_purpose_and_a_command(page):
    found = tokens(page)
    kinds = [token.type for token in found if token.level == 0 and not token.type.endswith("_close")]
    assert kinds[:2] == ["heading_open", "paragraph_open"], "a title, then what the page is for"
    sections = [i for i, token in enumerate(found) if token.type == "heading_open" and token.tag == "h2"]
    start = found[: sections[0]] if sections else found
    fences = [token.info for token in start if token.type == "fence"]
    assert fences[:1] in (["bash"], ["python"]), "a command or a call before the first section"


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_the_readme_lead_somewhere(page):
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} has a dead link: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} has a dead link: {link}"


def test_every_loss_is_among_the_python_names():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^::: pilot_tal(?:\.losses)?\.(\w+)$", text, re.MULTILINE))
    ours = {loss.__name__ for loss in LOSSES.values() if loss.__module__.startswith("pilot_tal.")}
    assert len(ours) > 10 and ours <= told  # others may have come with plugins
