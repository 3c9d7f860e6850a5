"""Runs a job in the environment of a real checkout and keeps what its first task started from and was fed with.

    python record_first_task.py JOB.json OUT.npz

Training images get the test transform and adapters no dropout, so that nothing in a step is left to chance.
"""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(job_file: str, out: str) -> None:
    spec = importlib.util.spec_from_file_location("driver_main", ROOT / "pilot_tal/upstream/__main__.py")
    started = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(started)
    started._find_own_packages()

    import numpy as np
    import torch
    import torch.utils.data

    import pilot_tal._torchvision  # noqa: F401
    from pilot_tal.upstream import driver, source, supervision
    from pilot_tal.upstream.job import read_job

    kept: dict[str, np.ndarray] = {}
    loaders = []

    class KeepingLoader(torch.utils.data.DataLoader):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            loaders.append(self)
            self.passes = 0

        def __iter__(self):
            for place, batch in enumerate(super().__iter__()):
                if self is loaders[0]:  # the first one made is the first task's
                    kept[f"x.{self.passes}.{place}"] = batch[1].numpy()
                    kept[f"y.{self.passes}.{place}"] = batch[2].numpy()
                yield batch
            self.passes += 1

    class Unaugmented(source.LongTailedSource):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.train_trsf = self.test_trsf

    class KeepingStart(supervision.Supervision):
        def __call__(self, logits, targets):
            if self.task is None:
                state = self.learner._network.state_dict()
                kept.update({f"start.{name}": value.numpy().copy() for name, value in state.items()})
            return super().__call__(logits, targets)

    torch.utils.data.DataLoader = KeepingLoader
    torch.nn.functional.dropout = lambda x, *_, **__: x
    source.LongTailedSource = Unaugmented
    supervision.Supervision = KeepingStart
    driver.run(read_job(job_file))
    np.savez(out, **kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
