"""What a run logs of its training and its prompts, against the same numbers computed another way."""

import numpy as np
import pytest
import torch
from helpers.cli import command
from helpers.images import make_images
from torch import nn

from pilot_tal.config.settings import method_config
from pilot_tal.engine.loop import train_task
from pilot_tal.losses import build_loss
from pilot_tal.record.run_dir import find_runs, load_run
from pilot_tal.stream.task import TaskInfo


class Echo(nn.Module):
    """A learner whose logits are its images."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def observe(self, x):
        return self.scale * x, x.new_zeros(())

    def param_groups(self):
        return [{"params": [self.scale], "lr": 0.0}]

    def learning_rate(self, base, epoch, epochs):
        return base

    def begin_task(self, task):
        pass

    begin_epoch = lambda self, epoch, epochs: None  # noqa: E731
    after_step = lambda self: None  # noqa: E731


def test_step_accuracy_is_the_share_of_the_batch_that_is_right():
    task = TaskInfo(1, 2, 3, 6, (2, 2, 2))
    logits = torch.eye(3)[[0, 1, 2, 2]]
    labels = torch.tensor([3, 4, 5, 4])  # the last one is wrong
    seen = []
    train_task(Echo(), build_loss("ce"), task, lambda epoch: [(logits, labels), (logits[:2], labels[[1, 0]])],
               epochs=1, config=method_config("l2p"), device="cpu", on_step=seen.append)  # fmt: skip
    assert [step.accuracy.item() for step in seen] == [0.75, 0.0]


@pytest.mark.parametrize("method", ["l2p", "dualprompt"])
def test_prompt_log_counts_the_prompts_that_each_test_image_picks(tmp_path, method):
    images = make_images(tmp_path / "images")
    settings = ["backbone=demo_vit", "weights=bundled", "n_max=6", "n_min=2", "test_per_class=3", "tasks=2"]
    settings += ["device=cpu", "epochs=1", "batch_size=5", "fidelity=fixed", "size=6"]
    status, printed = command("run", method, "folder_lt", *settings, f"data_root={images}", f"output={tmp_path / 'o'}")
    assert status == 0, printed
    run = load_run(find_runs([tmp_path / "o"])[0])
    assert [(line["task"], line["of_task"], line["images"]) for line in run.prompt_log()] == [(0, 0, 9), (1, 0, 9),
                                                                                             (1, 1, 9)]  # fmt: skip
    model = run.model()
    queries = torch.from_numpy(model.features(images / name for name in run.images(1)))
    keys = model.learner.prompt_key.detach()
    similarity = nn.functional.normalize(queries) @ nn.functional.normalize(keys).T
    picked = similarity.topk(model.learner.config.top_k).indices.numpy()
    expected = [np.bincount(picked[rows].ravel(), minlength=6).tolist() for rows in (slice(0, 9), slice(9, None))]
    assert [line["counts"] for line in run.prompt_log()[1:]] == expected
