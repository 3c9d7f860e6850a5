import torch
from models.base import FEATURES, BaseLearner
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Learner(BaseLearner):
    """Nearest class mean: nothing is trained."""

    def incremental_train(self, data_manager):
        self._cur_task, self._total_classes = self.next_task(data_manager)
        self.train_loader, self.test_loader = self.loaders(data_manager, DataLoader)
        rows = [(x.flatten(1), y) for _, x, y in self.train_loader]
        images, labels = (torch.cat(part) for part in zip(*rows, strict=True))
        old = getattr(self, "means", torch.zeros(0, FEATURES))
        new = [images[labels == label].mean(0) for label in range(self._known_classes, self._total_classes)]
        self.means = torch.cat([old, torch.stack(new)])

    def scores(self, inputs):
        return F.linear(F.normalize(inputs.flatten(1)), F.normalize(self.means))


LEARNER = Learner
