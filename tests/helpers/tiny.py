"""Settings of a tiny ViT on a tiny image folder, and what a run of it must hold."""

from pathlib import Path

TINY = [
    "backbone=vit_tiny_patch16_224",
    "weights=random",
    "img_size=32",
    "n_max=6",
    "n_min=2",
    "test_per_class=2",
    "tasks=2",
    "device=cpu",
    "references=none",
]


def settings(root: Path, output: Path, *more: str) -> list[str]:
    """The tiny settings with others in place of theirs."""
    given = {item.split("=")[0] for item in more}
    given |= {"tasks"} if "init_cls" in given else set()
    return [
        *(item for item in TINY if item.split("=")[0] not in given),
        f"data_root={root}",
        f"output={output}",
        *more,
    ]


def result_files(run: Path) -> dict[str, bytes]:
    """The files of a finished run that interruptions must not change: all but its environment and log."""
    files = [file for file in run.rglob("*") if file.is_file() and file.name not in ("run.json", "log.txt")]
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(files)}
