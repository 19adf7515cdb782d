"""MR² as the loss object of timm's train script: ``python examples/timm_train_script.py``.

With ``pip install 'classmargin[timm]'`` the model is ``timm.create_model("resnet18", num_classes=3)``; without it a stand-in
with the same interface runs, because nothing but ``get_classifier()`` is used.
"""

import torch
from torch import nn

from classmargin.integrations.timm import mr2_loss


class StandIn(nn.Module):
    """Two layers behind the interface of a timm model."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())
        self.fc = nn.Linear(16, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the last layer, as every model of timm does."""
        return self.fc

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.fc(self.body(images))
        return logits


torch.manual_seed(0)
model = StandIn(num_classes=3)
train_loss_fn = mr2_loss(model, smoothing=0.1)  # instead of nn.CrossEntropyLoss()

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
target = torch.arange(30) % 3
input = torch.randn(30, 3, 8, 8) + target[:, None, None, None]
for step in range(30):
    output = model(input)
    loss = train_loss_fn(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.3f}, accuracy {(output.argmax(1) == target).float().mean():.2f}")
