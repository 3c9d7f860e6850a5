"""Two real processes with unequal shards hold the Q, and the counts, that one process holds."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pilot_tal import TAL
from pilot_tal.losses import build_loss
from pilot_tal.stream.task import TaskInfo

CLASSES, STEPS = 6, 8


def batches():
    generator = torch.Generator().manual_seed(0)
    share = torch.arange(CLASSES, 0, -1.0)
    for step in range(STEPS):
        logits = torch.randn(9, CLASSES, generator=generator)
        targets = torch.multinomial(share, 9, replacement=True, generator=generator)
        targets[step % 9] = -100
        yield logits, targets, (2, 7) if step % 3 else (0, 9)  # an empty shard now and then


def worker(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    groups = [dist.new_group([each]) for each in range(2)]
    tal, piecewise, alone = TAL(CLASSES), TAL(CLASSES, accumulate=2), TAL(CLASSES, process_group=groups[rank])
    seesaw = build_loss("seesaw")
    seesaw.begin_task(TaskInfo(0, 1, 0, CLASSES, (1,) * CLASSES))
    for logits, targets, sizes in batches():
        shard, labels = logits.split(sizes)[rank], targets.split(sizes)[rank]
        tal(shard, labels)
        piecewise(shard, labels)
        alone(shard, labels)
        seesaw(shard, labels.clamp(min=0))
    states = {"every": tal.Q, "second": piecewise.Q, "alone": alone.Q}
    torch.save({**states, "updates": tal.updates, "seesaw": seesaw.seen}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_with_unequal_shards_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(worker, (port, str(tmp_path)), nprocs=2, start_method="spawn")
    every, second = TAL(CLASSES), TAL(CLASSES, accumulate=2)
    for logits, targets, _ in batches():
        every(logits, targets)
        second(logits, targets)
    for rank in range(2):
        seen = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(seen["every"], every.Q, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(seen["second"], second.Q, rtol=1e-6, atol=1e-7)
        assert seen["updates"] == STEPS
        counted = torch.cat([targets.clamp(min=0) for _, targets, _ in batches()]).bincount(minlength=CLASSES)
        assert torch.equal(seen["seesaw"], counted.float())
        alone = TAL(CLASSES)  # a group of its own sums nothing
        for logits, targets, sizes in batches():
            alone(logits.split(sizes)[rank], targets.split(sizes)[rank])
        torch.testing.assert_close(seen["alone"], alone.Q, rtol=1e-6, atol=1e-7)
