import numpy as np
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
        self._memory = None
        self._network = nn.Linear(FEATURES, args["nb_classes"])

    def after_task(self):
        self._known_classes = self._total_classes

    def next_task(self, data_manager):
        task = self._cur_task + 1
        return task, self._known_classes + data_manager.get_task_size(task)

    def loaders(self, data_manager, make):
        """The training loader is made by what the learner's own module calls DataLoader."""
        new = range(self._known_classes, self._total_classes)
        train = data_manager.get_dataset(new, "train", self._memory)
        test = data_manager.get_dataset(range(self._total_classes), "test")
        size = self.args["batch_size"]
        return make(train, batch_size=size, shuffle=True, num_workers=8), DataLoader(test, size, num_workers=8)

    def scores(self, inputs):
        return self._network(inputs.flatten(1))

    def eval_task(self):
        found = self._evaluate(*self._eval_cnn(self.test_loader))
        means = getattr(self, "_class_means", None)
        return found, None if means is None else self._evaluate(*self._eval_nme(self.test_loader, means))

    def _evaluate(self, y_pred, y_true):
        hits = y_pred == y_true[:, None]
        return {"top1": 100 * hits[:, 0].mean(), f"top{self.topk}": 100 * hits.any(axis=1).mean()}

    @torch.no_grad()
    def _eval_cnn(self, loader):
        best = [(self.scores(x)[:, : self._total_classes].topk(self.topk).indices, y) for _, x, y in loader]
        return tuple(torch.cat(part).numpy() for part in zip(*best, strict=True))

    def _eval_nme(self, loader, class_means):
        rows = [(torch.cdist(x.flatten(1), torch.tensor(class_means)).argsort(1), y) for _, x, y in loader]
        best, true = (torch.cat(part).numpy() for part in zip(*rows, strict=True))
        return best[:, : self.topk], true

    def _construct_exemplar(self, data_manager, m):
        for label in range(self._known_classes, self._total_classes):
            dataset = data_manager.get_dataset([label], "train")
            assert m <= len(dataset), "fewer images than exemplars"
            kept = dataset.images[:m], dataset.labels[:m]
            both = [kept] if self._memory is None else [self._memory, kept]
            self._memory = tuple(np.concatenate(part) for part in zip(*both, strict=True))

    def _construct_exemplar_unified(self, data_manager, m):
        self._construct_exemplar(data_manager, m)
