"""Your own training loop: MR² in two lines. Runs in seconds on a CPU: ``python examples/own_loop.py``."""

import torch
from torch import nn

import classmargin
from classmargin.data.synthetic import synthetic_features

# Six classes at equal distances whose spread grows from class to class.
data = synthetic_features(num_classes=6, samples_per_class=150, class_spread=[1, 2, 3, 4, 6, 8]).bundle
train_inputs, train_labels = data.train.inputs, data.train.labels


def train(use_mr2: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(train_inputs.shape[1], 32), nn.ReLU(), nn.Linear(32, 6))
    criterion = nn.CrossEntropyLoss()
    if use_mr2:
        captured = classmargin.capture_features(model)  # line 1: the input of the last nn.Linear
        criterion = captured.criterion()  # line 2: instead of nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(10):
        for rows in torch.randperm(len(train_labels)).split(64):
            optimizer.zero_grad()
            loss = criterion(model(train_inputs[rows]), train_labels[rows])
            loss.backward()
            optimizer.step()
    return model.eval()


for name, use_mr2 in (("cross-entropy", False), ("MR²", True)):
    model = train(use_mr2)
    with torch.no_grad():
        logits = model(data.test.inputs)
    result = classmargin.audit(data.test.labels, logits=logits, bootstrap=200)
    thirds = "  ".join(f"{tier} {100 * getattr(result, tier):.1f} %" for tier in ("easy", "medium", "hard"))
    print(f"{name:14} overall {100 * result.overall:.1f} %  {thirds}")
