"""MR² in a loop of Hugging Face accelerate: ``accelerate launch --multi_gpu --num_processes 2 examples/accelerate_loop.py``.

``--multi_gpu`` starts the processes even where there are only CPUs, as here; ``python examples/accelerate_loop.py`` is one process.
Capture the features before the model is prepared and use the criterion as it is: over several processes it sums its class
statistics by itself, and ``register_for_checkpointing`` saves them.
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
criterion = captured.criterion(accumulate=2)  # new: in place of cross-entropy; as gradient_accumulation_steps
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

# All processes leave together: whoever left first would close connections that the others still hold.
model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
accelerator.wait_for_everyone()
accelerator.end_training()
