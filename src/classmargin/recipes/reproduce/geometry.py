"""Feature statistics of a finished run on its training set."""

from __future__ import annotations

import torch

from classmargin.data import make_loader
from classmargin.evaluation.feature_geometry import ClassGeometry, FeatureSums, class_geometry
from classmargin.recipes.saved_model import load_model
from classmargin.recipes.session import load_bundle
from classmargin.training.run_folder import RunFolder

BATCH = 256


def training_geometry(folder: RunFolder) -> ClassGeometry:
    """Return spread and means of each class over the training samples, without augmentation.

    Raises:
        ValueError: The run has no readable checkpoint, or its data are gone.
    """
    from dataclasses import replace

    model = load_model(folder.path)
    bundle = load_bundle(model.config)
    bundle = replace(bundle, mean=model.record.mean, std=model.record.std)
    sums = FeatureSums.empty(bundle.num_classes, model.backbone.feature_dim, 2.0)
    loader = make_loader(bundle, "train", batch_size=BATCH, training=False)
    with torch.inference_mode():
        for batch in loader.epoch(0):
            sums.add(model.backbone(batch.inputs).features.numpy(), batch.labels.numpy())
    return class_geometry(sums)
