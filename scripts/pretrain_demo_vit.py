"""Pretrains the demo's ViT on characters that are not in the demo, and measures its frozen features.

    python scripts/pretrain_demo_vit.py    writes pilot_tal/backbone/assets/demo_vit.{safetensors,log.json}

The settings were chosen on 50 held-out pretraining characters in a held-out family of the training fonts (`CHOICE`;
--validate was an option of an earlier version), never on the demo's own characters and test fonts. The same command
gives the same weights, bit for bit, on one machine with one version of torch.
"""

import argparse
import json
import os
import platform
import sys
import time
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pilot_tal._torchvision  # noqa: F401  (before timm)
from data_lt.demo import CHARACTERS, demo_list, demo_picture
from data_lt.errors import UserError
from data_lt.files import atomic_path, checksum, write_json
from data_lt.glyphs import TRAIN_FONTS, covered, glyph, paint, pose
from pilot_tal.backbone.demo_vit import DEMO_VIT, demo_vit_path

LOOKALIKE = 0.86  # cosine between blurred shapes from which a character is too close to one of the demo's
SAME_SHAPE = 0.92  # ... and from which two pretraining characters count as one
MIN_FONTS = 8  # a character must be in so many of the 12 training fonts
KINDS = ("Lu", "Ll", "Lo", "Nd", "No", "Po", "Sc", "Sm", "So")  # Unicode categories with shapes of their own
CHOICE = (
    "Chosen with --validate: nearest class mean on 50 held-out pretraining characters in the held-out Mono "
    "fonts, where random weights give 0.023. After 1,500 steps, learning rate 2e-3 gave 0.359 and 1e-3 gave "
    "0.251. Without the second task the loss at step 900 was 5.04 instead of 4.59 (that trial was stopped "
    "there). These trials had a ViT of width 128. The number of steps follows from the time allowed; the other "
    "settings are first guesses. No picture of demo_lt was used."
)


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


def shape(char: str) -> np.ndarray:
    """The character in the plain sans and serif fonts as unit vectors, centred, blurred; zero if missing."""
    vectors = np.zeros((2, 24 * 24), dtype=np.float32)
    for vector, font in zip(vectors, ("DejaVuSans", "DejaVuSerif"), strict=True):
        if ord(char) in covered(font):
            image = glyph(char, font)
            size = [max(1, round(side * 20 / max(image.size))) for side in image.size]
            canvas = Image.new("L", (24, 24))
            canvas.paste(image.resize(size, Image.Resampling.BOX), ((24 - size[0]) // 2, (24 - size[1]) // 2))
            vector[:] = np.asarray(canvas.filter(ImageFilter.GaussianBlur(1))).ravel()
            vector /= np.linalg.norm(vector)
    return vectors


def likeness(one: np.ndarray, others: list[np.ndarray]) -> float:
    """The greatest cosine of a shape with any of the others, in either font."""
    return float(np.einsum("fd,nfd->nf", one, np.stack(others)).max()) if others else 0.0


def pretraining_characters() -> list[str]:
    """Every character in most training fonts that is none of the demo's, nor a variant or look-alike."""

    def family(char: str) -> str:  # "LATIN SMALL LETTER B WITH HOOK" is a variant of the demo's b
        return unicodedata.name(char, "").split(" WITH ")[0]

    banned = set(CHARACTERS) | {char.swapcase() for char in CHARACTERS}
    families = {family(char) for char in banned}
    demo = [shape(char) for char in CHARACTERS]
    chosen: dict[str, np.ndarray] = {}
    for code in sorted(code for code in covered("DejaVuSans") if code < 0xFFF0):  # then come specials, emoji
        char = chr(code)
        if sum(code in covered(font) for font in TRAIN_FONTS) < MIN_FONTS:
            continue
        if unicodedata.category(char) not in KINDS or unicodedata.name(char).startswith("BRAILLE"):
            continue
        if char in banned or family(char) in families or unicodedata.normalize("NFKD", char) != char:
            continue
        size = glyph(char, "DejaVuSans").size
        if max(size) < 20 or min(size) < 0.3 * max(size):  # dots and bars all look alike when enlarged
            continue
        vectors = shape(char)
        if likeness(vectors, demo) <= LOOKALIKE and likeness(vectors, list(chosen.values())) <= SAME_SHAPE:
            chosen[char] = vectors
    return list(chosen)


class Lessons(Dataset):
    """(picture, where its ink is, label): number i is always the same, whoever draws it.

    They grow harder until `ramp` of the way: from upright black on white to pictures like the demo's. Without that
    (and without the second answer, the ink) the ViT learns nothing for thousands of steps.
    """

    def __init__(self, characters: list[str], fonts: tuple[str, ...], settings: Settings):
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


def to_tensor(picture: np.ndarray) -> torch.Tensor:
    """Bytes, height × width × 3, to floats in [0, 1], 3 × height × width."""
    return torch.from_numpy(picture).permute(2, 0, 1).float() / 255


def demo_tensors(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures of the demo's split and their labels."""
    listed = demo_list(split)
    pictures = [to_tensor(demo_picture(split, char, number)) for char, number in listed]
    return torch.stack(pictures), torch.tensor([CHARACTERS.index(char) for char, _ in listed])


def new_vit(num_classes: int, seed: int) -> nn.Module:
    """The demo's ViT with random weights; without classes it gives the normalised class token."""
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


def train(model: Any, characters: list[str], fonts: tuple[str, ...], settings: Settings) -> list[dict]:
    """Trains the ViT to name the characters; gives loss and accuracy of each twentieth of the run."""
    torch.manual_seed(settings.seed)
    # Not shuffled: number i is random already, and the order is the curriculum.
    loader = DataLoader(Lessons(characters, fonts, settings), settings.batch, num_workers=1, prefetch_factor=8)
    find_ink = nn.Linear(model.embed_dim, DEMO_VIT["patch_size"] ** 2)
    optimizer, schedule = make_optimizer([*model.parameters(), *find_ink.parameters()], settings)
    history, sums, every = [], np.zeros(3), max(1, settings.steps // 20)
    started = time.monotonic()
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
            print(f"step {step}: loss {mean}, accuracy {accuracy}, {time.monotonic() - started:.0f} s")
            history.append({"step": step, "loss": mean, "accuracy": accuracy})
            sums[:] = 0
    return history


def make_optimizer(parameters: list[nn.Parameter], settings: Settings):
    """AdamW that decays matrices only, and a cosine schedule after a short warm-up."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr)
    share = min(0.5, settings.warmup / settings.steps)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, settings.steps, pct_start=share, cycle_momentum=False
    )


def in_patches(ink: torch.Tensor) -> torch.Tensor:
    """Images [B, H, W] as the ViT sees them: [B, patches, pixels of a patch]."""
    side = DEMO_VIT["patch_size"]
    return nn.functional.unfold(ink[:, None], side, stride=side).transpose(1, 2)


@torch.inference_mode()
def nearest_class_mean(
    model: Any, train: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor]
) -> float:
    """Share of test pictures whose feature is nearest (by cosine) to the mean feature of its own class."""
    model.eval()

    def features(x: torch.Tensor) -> torch.Tensor:
        batches = [model.forward_head(model.forward_features(b), pre_logits=True) for b in x.split(250)]
        return nn.functional.normalize(torch.cat(batches))

    known = features(train[0])
    means = torch.stack([known[train[1] == label].mean(0) for label in range(int(train[1].max()) + 1)])
    nearest = (features(test[0]) @ nn.functional.normalize(means).T).argmax(1)
    return (nearest == test[1]).double().mean().item()


def pretrain(settings: Settings, characters: list[str], output: Path) -> None:
    """Trains on everything, writes weights and log."""
    started, cpu = time.monotonic(), sum(os.times()[:4])  # with finished children
    with atomic_path(output) as temporary:  # opened now: better no training than one that cannot be kept
        model = new_vit(len(characters), settings.seed)
        history = train(model, characters, TRAIN_FONTS, settings)
        seconds, cpu = time.monotonic() - started, sum(os.times()[:4]) - cpu
        tensors = backbone_tensors(model)
        save_file(tensors, temporary, metadata={"format": "pt", "architecture": json.dumps(DEMO_VIT)})
    pictures = demo_tensors("train"), demo_tensors("test")
    random = [nearest_class_mean(new_vit(0, seed), *pictures) for seed in range(3)]
    pretrained = nearest_class_mean(model, *pictures)
    log = {
        "command": " ".join(["python", *sys.argv]),
        "architecture": DEMO_VIT,
        "parameters": sum(value.numel() for value in tensors.values()),
        "sha256": checksum(output),
        "settings": asdict(settings),
        "characters": "".join(characters),
        "fonts": TRAIN_FONTS,
        "history": history,
        "seconds": round(seconds),
        "cpu_seconds": round(cpu),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "demo_nearest_class_mean": {"pretrained": pretrained, "random_weights": random},
        "choice_of_settings": CHOICE,
    }
    write_json(output.with_suffix(".log.json"), log)
    print(f"{output}: demo_lt, nearest class mean {pretrained:.4f}, with random weights {random}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Settings.steps, help="optimizer steps")
    parser.add_argument("--output", type=Path, default=demo_vit_path(), help="the weights; the log goes beside them")
    given = parser.parse_args()
    torch.set_num_threads(1)  # another number gives other last digits
    torch.use_deterministic_algorithms(True)
    pretrain(Settings(steps=given.steps), pretraining_characters(), given.output)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
