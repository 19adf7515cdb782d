import pytest
import torch

from classmargin.data import synthetic_features, synthetic_images


def test_means_are_equally_far_apart_and_spreads_are_as_asked():
    spread = [0.5, 1.0, 4.0]
    made = synthetic_features(
        num_classes=3, dimensions=8, samples_per_class=20000, mean_distance=2.0, class_spread=spread
    )
    distances = torch.pdist(made.class_means)
    assert torch.allclose(distances, torch.full_like(distances, 2.0))
    train = made.bundle.train
    for label in range(3):
        rows = train.inputs[train.labels == label].double()
        deviation = (rows - made.class_means[label]).square().sum(1).mean()
        assert float(deviation) == pytest.approx(spread[label], rel=0.03)
        assert float((rows.mean(0) - made.class_means[label]).norm()) < 0.05


def test_two_classes_reach_the_error_of_the_best_possible_rule():
    # Two spherical Gaussians: the best rule errs with probability Phi(-distance / (2 sigma)).
    made = synthetic_features(
        num_classes=2, dimensions=4, samples_per_class=20000, mean_distance=2.0, class_spread=[4, 4]
    )
    test = made.bundle.test
    nearest = torch.cdist(test.inputs.double(), made.class_means).argmin(1)
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(-1.0))
    assert float((nearest != test.labels).double().mean()) == pytest.approx(float(expected), abs=0.01)


def test_images_scatter_around_their_pattern_by_the_stated_noise():
    made = synthetic_images(num_classes=2, side=6, samples_per_class=4000, noise=[0.02, 0.1])
    train = made.bundle.train
    assert train.inputs.dtype == torch.uint8
    for label in range(2):
        rows = train.inputs[train.labels == label].double().flatten(1) / 255
        deviation = (rows - made.class_means[label]).square().sum(1).mean()
        assert float(deviation) == pytest.approx(float(made.class_spread[label]), rel=0.03)


def test_the_seed_decides_everything_and_parts_differ():
    first, again, other = (synthetic_features(seed=seed).bundle for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    assert not torch.equal(first.train.inputs, first.test.inputs)


@pytest.mark.parametrize(
    "options",
    [{"num_classes": 1}, {"class_spread": [1.0]}, {"class_spread": [1, 1, 1, -1]}, {"dimensions": 2}],
)
def test_impossible_requests_are_refused(options):
    with pytest.raises(ValueError):
        synthetic_features(**options)
