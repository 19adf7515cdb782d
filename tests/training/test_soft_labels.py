"""Mixed samples and teachers: values, who takes them, and that interrupted runs resume bit-identical."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin._types import Batch
from classmargin.methods import create, list_methods, requirements_of
from classmargin.methods.base import Step, TaskInfo
from classmargin.training.soft_labels import SoftLabels, cutmix, read_teacher
from trees import same

SOFT = [info.name for info in list_methods() if requirements_of(info.name).soft_labels]


def images(samples: int = 6, side: int = 8) -> Batch:
    """Image i is filled with the number i, so that what was mixed can be read from the pixels."""
    inputs = torch.arange(float(samples)).view(-1, 1, 1, 1).expand(samples, 2, side, side).clone()
    return Batch(inputs, torch.arange(samples), torch.arange(samples))


def test_without_a_wish_the_batch_stays_as_it_is():
    batch = images()
    mixed = SoftLabels(6)(batch, 0)
    assert mixed.inputs is batch.inputs
    assert mixed.labels is batch.labels


@pytest.mark.parametrize("step", range(4))
def test_mixup_averages_inputs_and_labels_with_the_same_share(step):
    batch = images()
    mixed = SoftLabels(6, "mixup", seed=4)(batch, step)
    torch.testing.assert_close(mixed.labels.sum(dim=1), torch.ones(6))
    # Every sample is a class of its own, so labels tell which images were mixed, and how.
    expected = torch.einsum("bk,kchw->bchw", mixed.labels, batch.inputs)
    torch.testing.assert_close(mixed.inputs, expected)
    shares = mixed.labels.diagonal()
    kept = shares[(mixed.labels > 0).sum(dim=1) == 2]
    assert len(kept) >= 2
    torch.testing.assert_close(kept, kept[:1].expand_as(kept))


@pytest.mark.parametrize("step", range(6))
def test_the_label_of_cutmix_is_the_share_of_the_area_that_is_left(step):
    mixed = SoftLabels(6, "cutmix")(images(), step)
    areas = torch.stack([(mixed.inputs[:, 0] == number).float().mean(dim=(1, 2)) for number in range(6)], 1)
    torch.testing.assert_close(mixed.labels, areas)


def test_the_box_of_cutmix_is_one_rectangle_in_all_channels():
    pictures = torch.stack([torch.zeros(3, 9, 7), torch.ones(3, 9, 7)])
    mixed, kept = cutmix(pictures, torch.tensor([1, 0]), 0.5, np.random.default_rng(3))
    box = mixed[0, 0].bool()
    assert torch.equal(box, box.any(dim=1)[:, None] & box.any(dim=0)[None, :])
    assert torch.equal(mixed[0, 0], mixed[0, 2])
    assert 0 < kept < 1
    assert kept == pytest.approx(1 - float(box.float().mean()))


def test_both_takes_either_and_each_step_draws_anew():
    batch, both = images(), SoftLabels(6, "both", seed=1)
    kinds = {bool((both(batch, step).inputs % 1 == 0).all()) for step in range(20)}
    assert kinds == {True, False}, "boxes keep whole numbers, mixtures do not"
    assert torch.equal(both(batch, 3).inputs, both(batch, 3).inputs)
    assert not torch.equal(both(batch, 3).inputs, both(batch, 4).inputs)


def test_processes_mix_their_shares_differently():
    first, second = (SoftLabels(6, "mixup", rank=rank)(images(), 0).inputs for rank in (0, 1))
    assert not torch.equal(first, second)


def test_feature_vectors_are_mixed_and_boxes_of_them_are_refused():
    batch = Batch(torch.eye(4), torch.arange(4), torch.arange(4))
    mixed = SoftLabels(4, "mixup")(batch, 0)
    torch.testing.assert_close(mixed.inputs, mixed.labels)
    with pytest.raises(ValueError, match=r"pastes boxes of images.*use mixup"):
        SoftLabels(4, "cutmix")(batch, 0)


def test_a_teacher_replaces_the_classes_by_index_and_can_be_mixed():
    teacher = torch.rand(10, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    batch = Batch(torch.ones(4, 5), torch.zeros(4, dtype=torch.long), torch.tensor([7, 2, 2, 9]))
    assert torch.equal(SoftLabels(3, teacher=teacher)(batch, 0).labels, teacher[batch.index])
    mixed = SoftLabels(3, "mixup", teacher=teacher)(batch, 0)
    torch.testing.assert_close(mixed.labels.sum(dim=1), torch.ones(4))
    assert not torch.equal(mixed.labels, teacher[batch.index])


def test_the_methods_that_take_class_probabilities_are_those_the_message_names():
    others = {"erm", "balanced-softmax", "logit-adjustment"}
    assert {name for name in SOFT if not name.startswith(("mr2", "sam"))} == others
    assert {"mr2", "mr2-la", "mr2-uniform", "sam"} <= set(SOFT)


@pytest.mark.parametrize("name", SOFT)
def test_the_loss_of_one_hot_probabilities_is_that_of_the_classes(name):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 3
    task = TaskInfo(3, 4, torch.tensor([4, 4, 4]), labels)
    logits, features = (torch.randn(12, size, generator=generator) for size in (3, 4))
    totals = []
    for target in (labels, torch.nn.functional.one_hot(labels, 3).float()):
        method = create(name, task)
        step = Step(logits, features, target, torch.arange(12))
        method.loss(step, True)
        totals.append(method.loss(step, True).total)
    torch.testing.assert_close(*totals, rtol=1e-5, atol=1e-6)


def test_other_methods_are_refused_with_a_sentence(toy):
    with pytest.raises(ValueError, match=r"needs one class per sample.*data\.mix=mixup"):
        toy.loop(data={"mix": "mixup"})  # the toy method does not declare soft labels


@pytest.mark.parametrize("name", ["erm", "mr2"])
@pytest.mark.parametrize("cut_at", [3, 6])
def test_a_run_with_mixing_resumes_bit_identical(toy, name, cut_at):
    tables = {"data": {"mix": "mixup", "mix_alpha": 0.4}, "loop": {"checkpoint_steps": 2}}
    ends = []
    for folder, cuts in (("whole", []), ("cut", [cut_at])):
        for cut in (*cuts, None):
            loop = toy.loop(folder, method=create(name, toy.task()), **tables)
            toy.run_until(loop, cut)
        ends.append({"network": dict(loop.network.state_dict()), "method": dict(loop.method.state_dict())})
    assert same(*ends)
    plain = toy.loop("plain", method=create(name, toy.task()))
    plain.run()
    assert not same(ends[0]["network"], dict(plain.network.state_dict()))


def test_a_teacher_is_read_from_a_prediction_file_by_sample_id(tmp_path):
    path = tmp_path / "teacher.npz"
    probabilities = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
    np.savez(path, labels=[0, 1, 0], probabilities=probabilities, sample_id=[4, 1, 2])

    def read(ids, labels, names=("a", "b")):
        index = torch.tensor(ids)
        return read_teacher(str(path), labels=torch.tensor(labels), index=index, full_size=5, class_names=names)[index]

    torch.testing.assert_close(read([1, 4], [1, 0]), torch.tensor([[0.3, 0.7], [0.8, 0.2]]))
    with pytest.raises(ValueError, match="1 of 2 are missing or have another label"):
        read([1, 3], [1, 0])
    with pytest.raises(ValueError, match="1 of 2 are missing or have another label"):
        read([1, 4], [1, 1])
    with pytest.raises(ValueError, match="other classes"):
        read([1], [1], ("a", "b", "c"))
