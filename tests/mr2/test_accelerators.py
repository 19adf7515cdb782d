"""Right for accelerators, shown without one: operators, sizes, synchronisation and memory of a step on the meta device."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from classmargin.mr2 import MR2Loss

VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "expand", "lift_fresh", "permute", "reshape", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip
READS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "unique", "equal"}


class Watch(TorchDispatchMode):
    """Note the operators that are no views, the largest tensors they make, and the memory alive after each."""

    def __init__(self):
        super().__init__()
        self.names, self.shapes, self.storages, self.peak = [], [], {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
            self.note([leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)])
        return out

    def note(self, tensors):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.shapes.append(tuple(tensor.shape))
            self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))


def arguments(rows, classes, dim, device="meta", soft=False):
    with torch.device(device):
        logits = torch.zeros(rows, classes, requires_grad=True)
        features = torch.ones(rows, dim, requires_grad=True)
        labels = torch.full((rows, classes), 1.0 / classes) if soft else torch.zeros(rows, dtype=torch.long)
    return logits, labels, features


def watched(loss, *tensors):
    """Return what one forward and backward pass do, after a first step has made the buffers."""
    if isinstance(loss, MR2Loss):
        loss(*tensors).backward()
        for tensor in tensors:
            tensor.grad = None
    with Watch() as watch:
        loss(*tensors).backward()
    return watch


def build(name, classes, dim, device="meta", **options):
    with torch.device(device):
        return MR2Loss.preset(name, classes, dim, **options)


# --- operators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("recommended", 90), ("paper", 120)])
def test_a_step_takes_few_operators(name, most):
    watch = watched(build(name, 100, 64), *arguments(128, 100, 64))
    assert len(watch.names) <= most, sorted(watch.names)


def test_cross_entropy_is_counted_as_it_should():
    """The unit of the counts: 2 forward, and in the backward pass 2 and the first gradient."""
    watch = watched(lambda z, y, _: F.cross_entropy(z, y), *arguments(128, 100, 64))
    assert len(watch.names) == 5


@pytest.mark.parametrize("options", [{}, {"accumulate": 4}, {"margin_source": "spread"}, {"weight": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "soft"),
    [("recommended", False), ("recommended", True), ("paper", False), ("paper", True), ("release", False)],
)
def test_a_step_reads_nothing_from_the_device(name, soft, options):
    """On the meta device a read would even be an error; the names are checked for those that are none."""
    if "weight" in options:
        options = {"weight": torch.ones(100, device="meta")}
    watch = watched(build(name, 100, 64, **options), *arguments(128, 100, 64, soft=soft))
    assert not READS & set(watch.names)


def test_the_meta_device_would_tell_of_a_read():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones((), device="meta").item()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
def test_a_step_changes_no_python_state(name, accumulate):
    """So that a captured step is the step that runs."""
    loss = build(name, 100, 64, accumulate=accumulate)
    tensors = arguments(128, 100, 64)
    loss(*tensors)

    def attributes(module):
        return {key: value for key, value in vars(module).items() if key not in ("_buffers", "_modules", "_parameters")}

    modules = dict(loss.named_modules())
    before = {key: copy.copy(attributes(module)) for key, module in modules.items()}
    buffers = {key: id(buffer) for key, buffer in loss.named_buffers()}
    loss(*tensors).backward()
    assert {key: attributes(module) for key, module in modules.items()} == before
    assert {key: id(buffer) for key, buffer in loss.named_buffers()} == buffers


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"margin_source": "spread"}, {"norm_order": 3.0}], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_no_tensor_of_pairs_of_rows_or_of_classes_in_the_recommended_step(soft, options):
    rows, classes, dim = 512, 1000, 64
    watch = watched(build("recommended", classes, dim, **options), *arguments(rows, classes, dim, soft=soft))
    assert not {(rows, rows), (classes, classes)} & set(watch.shapes)
    largest = max(torch.Size(shape).numel() for shape in watch.shapes)
    assert largest <= rows * classes  # the logits


def test_pairs_are_there_where_they_are_meant_to_be():
    watch = watched(build("paper", 1000, 64), *arguments(512, 1000, 64))
    assert (512, 512) in watch.shapes
    assert (1000, 1000) not in watch.shapes


# --- memory -------------------------------------------------------------------------------------------------------


def test_peak_memory_over_cross_entropy_is_within_four_feature_sized_tensors():
    rows, classes, dim = 4096, 1000, 768
    tensors = arguments(rows, classes, dim)
    plain = watched(lambda z, y, _: F.cross_entropy(z, y, label_smoothing=0.1), *tensors).peak
    for tensor in tensors:
        tensor.grad = None
    ours = watched(build("recommended", classes, dim), *tensors).peak
    assert ours > plain >= 2 * 4 * rows * classes
    assert (ours - plain) / (4 * rows * dim) <= 4.0


def test_the_peak_counts_what_lives_at_the_same_time():
    with Watch() as watch:
        first = torch.empty(1000, device="meta")
        del first
        second = torch.empty(500, device="meta")
        third = second + 1
    assert watch.peak == 4 * 1000
    assert third.shape == second.shape
