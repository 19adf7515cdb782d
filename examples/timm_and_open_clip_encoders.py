"""Encoders of timm and open_clip as backbones, with random weights, offline: ``python examples/timm_and_open_clip_encoders.py``.

Needs ``pip install 'classmargin[timm,open-clip]'``, in an environment of its own if torch is a CPU build; without, it says so.
Weights come from a local file: ``create_backbone(..., checkpoint="model.safetensors")``. On the command line the name is the same:
``classmargin train --backbone timm:resnet18 ...``.
"""

import torch

from classmargin import MR2Loss
from classmargin.backbones import create_backbone

torch.manual_seed(0)
images, labels = torch.randn(6, 3, 64, 64), torch.arange(6) % 3
for name in ("timm:resnet18", "open_clip:ViT-B-32"):
    try:
        backbone = create_backbone(name, num_classes=3, input_size=64)
    except ImportError as error:
        print(f"{name}: {error}")
        continue
    output = backbone(images)
    loss = MR2Loss(num_classes=3)(output.logits, labels, output.features)
    loss.backward()
    print(f"{name}: features {tuple(output.features.shape)}, loss {loss.item():.3f}")
