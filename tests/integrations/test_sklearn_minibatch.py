"""The loss of the hidden layer is MR2Loss with its recommended settings; weights count rows in it."""

import copy

import numpy as np
import pytest
import torch

from classmargin import MR2Classifier, MR2Loss
from classmargin.integrations.sklearn_parts.minibatch import EpochData, FeatureNetwork, MinibatchTrainer

K, D, H = 5, 7, 6


def data(seed=0, rows=32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (rows,), generator=generator)
    features = torch.randn(rows, D, generator=generator, dtype=torch.float64) * (1 + labels[:, None])
    return EpochData(features, labels, torch.ones(rows, dtype=torch.float64))


def trainer_of(**options):
    network = FeatureNetwork(D, K, hidden=H, cosine=False, scale=None, intercept=True, seed=0, dtype=torch.float64)
    return MinibatchTrainer(network, MR2Loss(K, **options), learning_rate=0.01, alpha=0.0)


def steps(trainer, batch, count=4):
    for _ in range(count):
        trainer.epoch(batch, np.random.RandomState(0), batch_size=len(batch.labels), fixed_margins=None)
    return [parameter.detach() for parameter in trainer.network.parameters()]


@pytest.mark.parametrize("representation_weight", [0.0, 3.0])
def test_the_classifier_takes_the_settings_of_the_package(representation_weight):
    X, y, _ = data()
    options = {"mean_margin": 2.0, "representation_weight": representation_weight}
    model = MR2Classifier(hidden=(H,), epochs=1, **options).fit(X.numpy(), y.numpy())
    assert model._trainer.loss.extra_repr() == MR2Loss(K, **options).extra_repr()


@pytest.mark.parametrize("representation_weight", [0.0, 3.0])
def test_equal_weights_give_the_steps_of_the_plain_loss(representation_weight):
    trainer = trainer_of(representation_weight=representation_weight)
    network, loss = copy.deepcopy(trainer.network), MR2Loss(K, representation_weight=representation_weight)
    optimizer, batch = torch.optim.Adam(network.parameters(), lr=0.01), data()
    for _ in range(4):
        features, logits = network(batch.rows)
        optimizer.zero_grad()
        loss(logits, batch.labels, features).backward()
        optimizer.step()
    for ours, expected in zip(steps(trainer, batch), network.parameters(), strict=True):
        torch.testing.assert_close(ours, expected.detach())


def test_a_row_of_weight_two_counts_twice_in_statistics_and_steps():
    options = {"margin_source": "sqnorm"}
    weighted, twice, plain = trainer_of(**options), trainer_of(**options), trainer_of(**options)
    batch = data()
    batch.weight[::3] = 2.0
    index = torch.arange(len(batch.labels)).repeat_interleave(batch.weight.long())
    repeated = EpochData(batch.rows[index], batch.labels[index], torch.ones(len(index), dtype=torch.float64))
    # Weights of mean 1, as fit gives them; else a step would count the rows it stands for.
    scaled = batch._replace(weight=batch.weight / batch.weight.mean())
    found, expected, unweighted = steps(weighted, scaled), steps(twice, repeated), steps(plain, data())
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted)
    assert any((ours - other).abs().max() > 1e-4 for ours, other in zip(found, unweighted, strict=True))
    torch.testing.assert_close(weighted.loss.class_margins, twice.loss.class_margins)
    assert weighted.loss.class_margins.std() > 0
    torch.testing.assert_close(weighted.loss.statistics.class_spread, twice.loss.statistics.class_spread)
