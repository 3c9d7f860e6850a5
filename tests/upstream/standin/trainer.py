"""Stand-in for a toolbox: seeds, splits the classes, trains and evaluates task by task."""

import torch
from utils import factory
from utils.data_manager import DataManager


def train(args):
    for seed in args["seed"]:
        _train({**args, "seed": seed})


def _train(args):
    torch.manual_seed(args["seed"])
    args["device"] = [torch.device("cpu" if number == -1 else f"cuda:{number}") for number in args["device"]]
    data = DataManager(args["dataset"], args["shuffle"], args["seed"], args["init_cls"], args["increment"], args)
    args["nb_classes"] = len(data._class_order)
    model = factory.get_model(args["model_name"], args)
    for task in range(data.nb_tasks):
        model.incremental_train(data)
        found, _ = model.eval_task()
        model.after_task()
        print(f"standin: task {task}, top1 {found['top1']:.2f}, top5 {found['top5']:.2f}")
