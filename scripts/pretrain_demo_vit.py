"""Pretrains the demo's ViT on characters that are not in the demo, and measures its frozen features.

    python scripts/pretrain_demo_vit.py    writes pilot_tal/backbone/assets/demo_vit.{safetensors,log.json}

The log names the pretraining characters and how they and the settings were chosen: never on the demo's own characters
and test fonts. The same command gives the same weights, bit for bit, on one machine with one version of torch.
"""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pilot_tal._torchvision  # noqa: F401  (before timm)
from data_lt.demo import CHARACTERS, TRAIN_FONTS, covered, demo_list, demo_picture, paint, pose
from data_lt.files import atomic_path, checksum, read_json, write_json
from pilot_tal.api import create_learner
from pilot_tal.backbone import build_from_state
from pilot_tal.backbone.load import DEMO_VIT, DEMO_WEIGHTS
from pilot_tal.stream.task import TaskInfo

LOG = DEMO_WEIGHTS.with_suffix(".log.json")


@dataclass(frozen=True)
class Settings:
    """How the ViT is trained."""

    steps: int = 6000
    batch: int = 64
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: int = 50
    label_smoothing: float = 0.1
    ink_weight: float = 1.0  # of the second task: say from each patch's token which of its pixels are ink
    ramp: float = 0.5  # share of the steps after which the pictures are as hard as the demo's
    seed: int = 0


class Lessons(Dataset):
    """(picture, where its ink is, label): number i is always the same, whoever draws it.

    They grow harder until `ramp` of the way: from upright black on white to pictures like the demo's. Without that
    (and without the second answer, the ink) the ViT learns nothing for thousands of steps.
    """

    def __init__(self, characters: Iterable[str], fonts: tuple[str, ...], settings: Settings):
        self.choices = [(char, [f for f in fonts if ord(char) in covered(f)]) for char in characters]
        self.settings = settings

    def __len__(self) -> int:
        return self.settings.steps * self.settings.batch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        rng = np.random.default_rng([self.settings.seed, index])
        strength = min(1.0, index / len(self) / self.settings.ramp)
        label = int(rng.integers(len(self.choices)))
        char, fonts = self.choices[label]
        ink = pose(char, fonts[rng.integers(len(fonts))], rng, strength)
        picture = strength * paint(ink, rng) + (1 - strength) * (1 - ink[..., None])
        return torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1), torch.from_numpy(ink), label


def demo_tensors(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures of the demo's split, pixels in [0, 1], and their labels."""
    listed = demo_list(split)
    pictures = np.stack([demo_picture(split, char, number) for char, number in listed])
    labels = torch.tensor([CHARACTERS.index(char) for char, _ in listed])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255, labels


def demo_accuracy(state: dict[str, torch.Tensor]) -> float:
    """Accuracy of SimpleCIL (nearest class mean, by cosine) on all characters of the demo in one task."""
    learner = create_learner("simplecil", build_from_state(state, DEMO_VIT["num_heads"]), len(CHARACTERS), 1)
    (x, y), (test, truth) = demo_tensors("train"), demo_tensors("test")
    learner.begin_task(TaskInfo(0, 1, 0, len(CHARACTERS), tuple(torch.bincount(y).tolist())))
    learner.end_task(lambda: [(x, y)])
    return (learner.scores(test).argmax(1) == truth).double().mean().item()


def new_vit(num_classes: int, seed: int) -> nn.Module:
    """The demo's ViT with random weights."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(seed)
    model = VisionTransformer(**DEMO_VIT, num_classes=num_classes, weight_init="jax")  # larger than timm's default
    with torch.no_grad():  # blind to flat colour, which is random and would drown the shapes
        patches = model.patch_embed.proj
        patches.weight -= patches.weight.mean((2, 3), keepdim=True)
        patches.bias.zero_()
    return model


def backbone_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights without the classifier, in timm's names."""
    return {name: value.contiguous() for name, value in model.state_dict().items() if not name.startswith("head.")}


def train(model: Any, characters: Iterable[str], fonts: tuple[str, ...], settings: Settings) -> list[dict]:
    """Trains the ViT to name the characters; gives loss and accuracy of each twentieth of the run."""
    torch.manual_seed(settings.seed)
    # Not shuffled: number i is random already, and the order is the curriculum.
    loader = DataLoader(Lessons(characters, fonts, settings), settings.batch, num_workers=1, prefetch_factor=8)
    find_ink = nn.Linear(model.embed_dim, DEMO_VIT["patch_size"] ** 2)
    parameters = [*model.parameters(), *find_ink.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr)
    share = min(0.5, settings.warmup / settings.steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, settings.steps, pct_start=share, cycle_momentum=False
    )
    history, sums, every = [], np.zeros(3), max(1, settings.steps // 20)
    model.train()
    for step, (x, ink, y) in enumerate(loader, 1):
        tokens = model.forward_features(x)
        logits = model.forward_head(tokens)
        loss = nn.functional.cross_entropy(logits, y, label_smoothing=settings.label_smoothing)
        ink_loss = nn.functional.binary_cross_entropy_with_logits(find_ink(tokens[:, 1:]), in_patches(ink))
        optimizer.zero_grad()
        (loss + settings.ink_weight * ink_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        sums += (loss.item() * len(y), (logits.argmax(1) == y).sum().item(), len(y))
        if step % every == 0 or step == settings.steps:
            mean, accuracy = (round(float(total / sums[2]), 4) for total in sums[:2])
            print(f"step {step}: loss {mean}, accuracy {accuracy}")
            history.append({"step": step, "loss": mean, "accuracy": accuracy})
            sums[:] = 0
    return history


def in_patches(ink: torch.Tensor) -> torch.Tensor:
    """Images [B, H, W] as the ViT sees them: [B, patches, pixels of a patch]."""
    side = DEMO_VIT["patch_size"]
    return nn.functional.unfold(ink[:, None], side, stride=side).transpose(1, 2)


def main() -> None:
    """Trains on all characters in all training fonts; writes weights and log."""
    torch.set_num_threads(1)  # another number gives other last digits
    torch.use_deterministic_algorithms(True)
    settings, log = Settings(), read_json(LOG)
    cpu = sum(os.times()[:4])  # with finished children
    with atomic_path(DEMO_WEIGHTS) as temporary:  # opened now: better no training than one that cannot be kept
        model = new_vit(len(log["characters"]), settings.seed)
        history = train(model, log["characters"], TRAIN_FONTS, settings)
        tensors = backbone_tensors(model)
        save_file(tensors, temporary, metadata={"format": "pt", "architecture": json.dumps(DEMO_VIT)})
    log |= {
        "architecture": DEMO_VIT,
        "parameters": sum(value.numel() for value in tensors.values()),
        "sha256": checksum(DEMO_WEIGHTS),
        "settings": asdict(settings),
        "fonts": TRAIN_FONTS,
        "history": history,
        "cpu_seconds": round(sum(os.times()[:4]) - cpu),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "demo_simplecil": {
            "pretrained": demo_accuracy(tensors),
            "random_weights": [demo_accuracy(new_vit(0, seed).state_dict()) for seed in range(3)],
        },
    }
    write_json(LOG, log)
    print(f"SimpleCIL on demo_lt: {log['demo_simplecil']}")


if __name__ == "__main__":
    main()
