import torch
from torch import nn
from torch.utils.data import DataLoader

FEATURES = 8 * 8 * 3


class BaseLearner:
    def __init__(self, args):
        self.args = args
        self._cur_task = -1
        self._known_classes = self._total_classes = 0
        self.topk = 5
        self._device = args["device"][0]
        self._network = nn.Linear(FEATURES, args["nb_classes"])

    def after_task(self):
        self._known_classes = self._total_classes

    def next_task(self, data_manager):
        task = self._cur_task + 1
        return task, self._known_classes + data_manager.get_task_size(task)

    def loaders(self, data_manager, make):
        """The training loader is made by what the learner's own module calls DataLoader."""
        new = range(self._known_classes, self._total_classes)
        train = data_manager.get_dataset(new, "train")
        test = data_manager.get_dataset(range(self._total_classes), "test")
        size = self.args["batch_size"]
        return make(train, batch_size=size, shuffle=True, num_workers=8), DataLoader(test, size, num_workers=8)

    def scores(self, inputs):
        return self._network(inputs.flatten(1))

    def eval_task(self):
        return self._evaluate(*self._eval_cnn(self.test_loader)), None

    def _evaluate(self, y_pred, y_true):
        hits = y_pred == y_true[:, None]
        return {"top1": 100 * hits[:, 0].mean(), f"top{self.topk}": 100 * hits.any(axis=1).mean()}

    @torch.no_grad()
    def _eval_cnn(self, loader):
        best = [(self.scores(x)[:, : self._total_classes].topk(self.topk).indices, y) for _, x, y in loader]
        return tuple(torch.cat(part).numpy() for part in zip(*best, strict=True))
