import torch
from models.base import BaseLearner
from torch.nn import functional as F
from torch.utils.data import DataLoader

num_workers = 8


class Learner(BaseLearner):
    def incremental_train(self, data_manager):
        self._cur_task, self._total_classes = self.next_task(data_manager)
        self.train_loader, self.test_loader = self.loaders(data_manager, DataLoader)
        self._init_train(self.train_loader, torch.optim.SGD(self._network.parameters(), lr=0.2))

    def _init_train(self, train_loader, optimizer):
        for _ in range(self.args["tuned_epoch"]):
            for _, inputs, targets in train_loader:
                logits = self.scores(inputs)[:, : self._total_classes]
                logits[:, : self._known_classes] = -torch.inf
                loss = F.cross_entropy(logits, targets.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


LEARNER = Learner
