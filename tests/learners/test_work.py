"""A training step multiplies what it has to and nothing more, by torch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pilot_tal.backbone import build_backbone
from pilot_tal.config.settings import method_config
from pilot_tal.learners import build_learner
from pilot_tal.losses import build_loss
from pilot_tal.stream.task import TaskInfo


@pytest.fixture(scope="module")
def vit():
    return build_backbone("deit_tiny_patch16_224", "random", 64)


class Work:
    """Multiply-adds of an image in linear layers and adapters that a learner cannot do without."""

    def __init__(self, vit, learner):
        block = vit.vit.blocks[0]
        self.depth, self.tokens = vit.depth, vit.vit.patch_embed.num_patches + 1
        self.qkv, self.proj = block.attn.qkv.weight.numel(), block.attn.proj.weight.numel()
        self.mlp = block.mlp.fc1.weight.numel() + block.mlp.fc2.weight.numel()
        self.patches = (self.tokens - 1) * vit.vit.patch_embed.proj.weight.numel()
        self.method, config = learner.name, learner.config
        self.prompts = config.top_k * config.length if self.method == "l2p" else 0
        self.adapter = 2 * vit.dim * config.ffn_num if self.method == "mos" else 0

    def training(self) -> int:
        """A query if there is one, a forward, and back to the first learned tensor."""
        query = 0 if self.method in ("lae", "mos") else self.forward(self.tokens, 1, 0)
        embedded = self.patches * (2 if query else 1)
        return embedded + query + self.learned_forward() + self._backward()

    def evaluation(self) -> int:
        """One forward, LAE's two; the query of a test image is computed once a run."""
        return self.patches + self.learned_forward() * (2 if self.method == "lae" else 1)

    def learned_forward(self) -> int:
        """With what the learner adds, after the patches."""
        return self.forward(self.tokens + self.prompts, max(1, self.prompts), self.adapter)

    def forward(self, tokens: int, kept: int, adapter: int) -> int:
        """All blocks; the last one has keys and values of every token and the rest of those that are kept."""
        last = tokens * self.qkv * 2 // 3 + kept * (self.qkv // 3 + self.proj + self.mlp + adapter)
        return (self.depth - 1) * tokens * (self.qkv + self.proj + self.mlp + adapter) + last

    def _backward(self) -> int:
        """As the forward, and a gradient of each adapter's weights; without what the first learned tensor is behind."""
        tokens, kept = self.tokens + self.prompts, max(1, self.prompts)
        rows = (self.depth - 1) * tokens + kept
        spared = 0
        if self.method == "mos":
            spared = tokens * (self.qkv + self.proj + self.mlp)  # the adapter beside the first MLP is where it ends
        elif not self.prompts:
            spared = tokens * self.qkv  # the first prefix needs no gradient of its block's input
        return self.learned_forward() + rows * self.adapter - spared


def products(run) -> float:
    """Multiply-adds of linear layers and convolutions, the learner's own few included; attention is not counted."""
    with FlopCounterMode(display=False) as counter:
        run()
    return sum(counter.get_flop_counts()["Global"].values()) / 2


@pytest.mark.parametrize("method", ["l2p", "dualprompt", "coda_prompt", "lae", "mos"])
def test_no_product_is_done_twice_or_in_vain(method, vit):
    torch.manual_seed(0)
    config = method_config(method)
    learner = build_learner(method, vit, config, 40, 2, "fixed")
    task = TaskInfo(0, 2, 0, 20, (5,) * 20)
    learner.begin_task(task)
    learner.begin_epoch(config.tuned_epoch - 1, config.tuned_epoch)
    criterion = build_loss("tal")
    criterion.begin_task(task)
    x, y, work = torch.rand(2, 3, 64, 64), torch.tensor([0, 1]), Work(vit, learner)

    def step() -> None:
        logits, aux = learner.observe(x)
        (criterion(logits, y) + aux).backward()

    assert products(step) / 2 == pytest.approx(work.training(), rel=0.01)
    if method != "mos":  # whose evaluation needs the end of a task
        ids = torch.arange(2)
        learner.scores(x, ids)
        assert products(lambda: learner.scores(x, ids)) / 2 == pytest.approx(work.evaluation(), rel=0.01)
