import torch
from models.base import FEATURES, BaseLearner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

num_workers = 8


class Learner(BaseLearner):
    def __init__(self, args):
        super().__init__(args)
        self._network = nn.Linear(FEATURES, args["nb_classes"])

    def incremental_train(self, data_manager):
        self._cur_task += 1
        self._total_classes = self._known_classes + data_manager.get_task_size(self._cur_task)
        new = range(self._known_classes, self._total_classes)
        dataset = data_manager.get_dataset(new, "train")
        self.train_loader = DataLoader(dataset, batch_size=self.args["batch_size"], shuffle=True, num_workers=8)
        self.test_loader = self.loader(data_manager.get_dataset(range(self._total_classes), "test"))
        self._init_train(self.train_loader, torch.optim.SGD(self._network.parameters(), lr=0.2))

    def _init_train(self, train_loader, optimizer):
        for _ in range(self.args["tuned_epoch"]):
            for _, inputs, targets in train_loader:
                logits = self.scores(inputs)[:, : self._total_classes]
                logits[:, : self._known_classes] = float("-inf")
                loss = F.cross_entropy(logits, targets.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


LEARNER = Learner
