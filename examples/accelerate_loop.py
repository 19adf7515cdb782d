"""MR² in a loop of Hugging Face accelerate: ``torchrun --nproc-per-node 2 examples/accelerate_loop.py``.

With several accelerators ``accelerate launch`` does the same; ``python examples/accelerate_loop.py`` is one process. The
features are captured from the model before it is prepared, the criterion is used as it is: over several processes it sums its
class statistics by itself, and its state is saved with ``register_for_checkpointing``.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from classmargin import capture_features

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
labels = torch.arange(240) % 4
inputs = torch.randn(240, 8) + 2.0 * torch.eye(4, 8)[labels]
loader = DataLoader(TensorDataset(inputs, labels), batch_size=15)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

captured = capture_features(model)  # new
criterion = captured.criterion(
    accumulate=2
)  # instead of nn.CrossEntropyLoss(); 2 as in gradient_accumulation_steps
accelerator.register_for_checkpointing(criterion)  # new: class statistics are saved and loaded with the model

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(4):
    for rows, classes in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(rows), classes)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

with torch.no_grad():
    logits = accelerator.gather(model(inputs[accelerator.process_index :: accelerator.num_processes]))
    truth = accelerator.gather(labels[accelerator.process_index :: accelerator.num_processes])
accuracy = (logits.argmax(1) == truth).float().mean()
updates, number = int(criterion.loss.statistics.updates), accelerator.num_processes
accelerator.print(f"{number} processes, {updates} steps of the statistics, accuracy {accuracy:.2f}")
