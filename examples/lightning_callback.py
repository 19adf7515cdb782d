"""MR² in Lightning with one callback, offline: ``python examples/lightning_callback.py``.

Needs ``pip install 'classmargin[lightning]'``.
"""

import tempfile
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from classmargin.data.synthetic import synthetic_features
from classmargin.integrations.lightning import MR2Callback

warnings.filterwarnings("ignore", ".*does not have many workers")


class LitModel(pl.LightningModule):
    """As it was before: nothing in it knows of MR²."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = self.criterion(self.net(batch[0]), batch[1])
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the loss of a batch."""
        self.log("val_loss", self.criterion(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


data = synthetic_features(num_classes=6, samples_per_class=100, class_spread=[1, 2, 3, 4, 6, 8]).bundle
train, validation = (
    DataLoader(TensorDataset(part.inputs, part.labels), batch_size=60, shuffle=part is data.train)
    for part in (data.train, data.validation)
)
with tempfile.TemporaryDirectory() as folder:
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        log_every_n_steps=5,
        callbacks=[MR2Callback()],  # new
    )
    trainer.fit(LitModel(), train, validation)
for name in ("val_overall", "val_easy", "val_medium", "val_hard", "val_worst"):
    print(f"{name:12} {trainer.callback_metrics[name]:.3f}")
