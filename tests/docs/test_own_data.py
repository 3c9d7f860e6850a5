"""Every recipe of docs/own_data.md runs, on small files of the layout that it describes."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.cli import ROOT, command
from helpers.images import make_images

PAGE = (ROOT / "docs/own_data.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## Recipe \d: (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TINY = ["backbone=vit_tiny_patch16_224", "weights=random", "img_size=32", "tasks=2", "seeds=1993", "device=cpu"]


def commands(section: str) -> list[list[str]]:
    text = "\n".join(re.findall(r"```bash\n(.*?)```", section, re.DOTALL))
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines()]


def images(root: str, count: int = 64) -> list[str]:
    """Paths below `root` of the images of three classes."""
    make_images(Path(root), classes=3, images=count, size=(12, 12))
    return sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*.png"))


def write_list(name: str, paths: list[str]) -> None:
    labels = sorted({path.split("/")[-2] for path in paths})
    Path(name).write_text("\n".join(f"{p} {labels.index(p.split('/')[-2])}" for p in paths) + "\n", encoding="utf-8")


def lay_out(recipe: str) -> None:
    """The files that a recipe's commands name."""
    if recipe == "training and test folders":
        images("birds/train"), images("birds/test", 4)
    elif recipe == "published lists":
        lists = {
            "imagenet": ("ImageNet_LT", "test"),
            "places365": ("Places_LT", "test"),
            "inat2018": ("iNaturalist18", "val"),
        }
        for root, (name, test) in lists.items():
            paths = images(root, 6)
            write_list(f"{name}_train.txt", [p for k, p in enumerate(paths) if k % 6 > 1])
            write_list(f"{name}_{test}.txt", [p for k, p in enumerate(paths) if k % 6 < 2])
    else:
        paths = images("photos")
        rows = [f"{p},{p.split('/')[0]},{'test' if k % 8 == 0 else 'train'}" for k, p in enumerate(paths)]
        Path("birds.csv").write_text("\n".join(["path,label,split", *rows]), encoding="utf-8")


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay_out(recipe)
    for arguments in commands(RECIPES[recipe]):
        given = {item.partition("=")[0] for item in arguments}
        more = [] if arguments[0] == "build" else ["--quick", *(i for i in TINY if i.partition("=")[0] not in given)]
        status, printed = command(*arguments, *more)
        assert status == 0, printed


def test_manifest_of_the_page_is_accepted(tmp_path):
    (text,) = re.findall(r"```\n(pilot-tal manifest 1\n.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    status, printed = command("build", "--check", path)
    assert status == 0 and "3 training images" in printed, printed
