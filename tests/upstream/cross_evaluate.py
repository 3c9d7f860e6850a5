"""Runs a job in the environment of a real checkout, with the learned tensors of every task written or read.

    python cross_evaluate.py JOB.json FOLDER write|read

`write` saves what the original has learned after each task, before it evaluates, and the predictions of a second
evaluation: those of MOS differ, because each evaluation merges its adapters. `read` takes the tensors of our learner in
place of the training of each task.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main(job_file: str, folder: str, direction: str) -> None:
    spec = importlib.util.spec_from_file_location("driver_main", ROOT / "pilot_tal/upstream/__main__.py")
    started = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(started)
    started._find_own_packages()

    import numpy as np
    import torch

    import pilot_tal._torchvision  # noqa: F401
    from data_lt.files import read_json
    from pilot_tal.upstream import driver
    from pilot_tal.upstream.checkout import check_environment

    follow, files = driver.RunRecorder.follow, Path(folder)

    def read_in_place_of_training(learner: Any) -> None:
        task, network = learner._cur_task, learner._network
        kept = {name: torch.from_numpy(array) for name, array in np.load(files / f"task{task}.npz").items()}
        if hasattr(learner, "cls_mean"):  # MOS sums its snapshots up as it takes them
            own = f"backbone.adapter_list.{task}."
            cur = {name.removeprefix(own): tensor for name, tensor in kept.items() if name.startswith(own)}
            network.backbone.cur_adapter.load_state_dict(cur)
            network.backbone.adapter_update()
            learner.replace_fc = lambda: None
        found = network.load_state_dict(kept, strict=False)
        assert not found.unexpected_keys, found.unexpected_keys

    def with_tensors(self: Any, patches: Any, kind: Any, supervision: Any) -> None:
        evaluate = kind._eval_cnn
        follow(self, patches, kind, supervision)
        train, end = kind.incremental_train, self.end_task

        def train_and_write(learner: Any, data_manager: Any) -> None:
            train(learner, data_manager)
            state = {name: tensor.numpy() for name, tensor in learner._network.state_dict().items()}
            np.savez(files / f"task{learner._cur_task}.npz", **state)

        def evaluate_twice(learner: Any, pred: Any, true: Any) -> None:
            end(learner, pred, true)
            np.save(files / f"second{learner._cur_task}.npy", evaluate(learner, learner.test_loader)[0][:, 0])

        def read(learner: Any, data_manager: Any) -> None:
            prompt = getattr(learner._network, "prompt", None)
            if prompt is not None:
                prompt.process_task_count = lambda: setattr(prompt, "task_count", prompt.task_count + 1)
            learner._train = lambda *_: read_in_place_of_training(learner)
            train(learner, data_manager)

        if direction == "write":
            kind.incremental_train, self.end_task = train_and_write, evaluate_twice
        else:
            kind.incremental_train = read

    driver.RunRecorder.follow = with_tensors
    driver.run(driver.Job(**read_json(job_file)), check_environment())


if __name__ == "__main__":
    main(*sys.argv[1:])
