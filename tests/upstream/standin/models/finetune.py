import torch
from models.base import BaseLearner
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Learner(BaseLearner):
    """Gives its cross-entropy the task's own columns, labels from 0."""

    def incremental_train(self, data_manager):
        self._cur_task, self._total_classes = self.next_task(data_manager)
        self.train_loader, self.test_loader = self.loaders(data_manager, DataLoader)
        optimizer = torch.optim.SGD(self._network.parameters(), lr=0.2)
        (self._init_train if self._cur_task == 0 else self._update_representation)(optimizer)

    def _init_train(self, optimizer):
        for _ in range(self.args["init_epoch"]):
            for _, inputs, targets in self.train_loader:
                logits = self.scores(inputs)[:, : self._total_classes]
                self.step(optimizer, F.cross_entropy(logits, targets))

    def _update_representation(self, optimizer):
        for _ in range(self.args["epochs"]):
            for _, inputs, targets in self.train_loader:
                logits = self.scores(inputs)[:, : self._total_classes]
                fake_targets = targets - self._known_classes
                loss_clf = F.cross_entropy(logits[:, self._known_classes :], fake_targets)
                self.step(optimizer, loss_clf)

    def step(self, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LEARNER = Learner
