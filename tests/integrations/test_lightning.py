"""MR² in Lightning: the module's cross-entropy becomes MR², thirds are logged, a resumed run is the same run."""

import copy
import importlib
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy_training import NUM_CLASSES, Network, batch, new_network

import classmargin
from classmargin import MR2Loss, capture_features

pytest.importorskip("lightning")
import lightning.pytorch as pl

from classmargin.integrations.lightning import MR2Callback, find_criterion

pytestmark = [
    # advice about speed that a toy does not need
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    # Lightning's own use of a part of torch that is going away
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]

TRAIN, VALIDATION = batch(48, 0), batch(40, 1)


class Lit(pl.LightningModule):
    """An ordinary module that knows nothing of classmargin."""

    def __init__(self, **criterion):
        super().__init__()
        self.net = new_network()
        self.criterion = nn.CrossEntropyLoss(**criterion)

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, rows, _):
        return self.criterion(self(rows[0]), rows[1])

    def validation_step(self, rows, _, dataloader_idx=0):
        self.log("val_loss", self.criterion(self(rows[0]), rows[1]))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def loader(rows, size=8):
    return DataLoader(TensorDataset(*rows), batch_size=size)


def make_trainer(callbacks, folder, epochs=1, enable_checkpointing=False, **settings):
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        enable_checkpointing=enable_checkpointing,
        callbacks=callbacks,
        **settings,
    )


def fit(folder, epochs=1, module=None, ckpt_path=None, trainer_settings=None, **options):
    torch.manual_seed(0)
    module, callback = module or Lit(), MR2Callback(**options)
    trainer = make_trainer([callback], folder, epochs, **(trainer_settings or {}))
    trainer.fit(module, loader(TRAIN), loader(VALIDATION), ckpt_path=ckpt_path)
    return trainer, module, callback


def by_hand(steps_of, epochs=1, **options):
    """Train the same network with the loss written out; ``steps_of`` micro-batches make a step."""
    network, loss = new_network(), MR2Loss.preset("recommended", NUM_CLASSES, **options)
    captured = capture_features(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for number, (inputs, labels) in enumerate(loader(TRAIN)):
            first = number % steps_of == 0
            terms = loss.terms(network(inputs), labels, captured.features, update_statistics=first)
            (terms.total / steps_of).backward()
            if number % steps_of == steps_of - 1:
                optimizer.step()
                optimizer.zero_grad()
    return network, loss, terms


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name, value in other.items() if not torch.equal(one[name], value)] == []


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_equals_the_loss_by_hand(accumulate, tmp_path):
    settings = {"accumulate_grad_batches": accumulate}
    trainer, module, callback = fit(tmp_path, 2, trainer_settings=settings, mean_margin=2.0)
    network, loss, _ = by_hand(accumulate, epochs=2, mean_margin=2.0)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value)
    assert int(callback.loss.statistics.updates) == int(loss.statistics.updates) == trainer.global_step


def test_resumed_training_equals_an_uninterrupted_one(tmp_path):
    _, whole, callback = fit(tmp_path, 4)
    half, _, _ = fit(tmp_path, 2)
    half.save_checkpoint(tmp_path / "half.ckpt")
    _, again, other = fit(tmp_path, 4, ckpt_path=tmp_path / "half.ckpt")
    assert_same(again.state_dict(), whole.state_dict())
    assert_same(other.loss.state_dict(), callback.loss.state_dict())


def test_checkpoint_has_the_statistics_and_loads_without_the_callback(tmp_path):
    trainer, module, callback = fit(tmp_path)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)
    assert_same(saved["callbacks"]["MR2Callback"]["statistics"], dict(callback.loss.state_dict()))
    assert saved["state_dict"].keys() == Lit().state_dict().keys()
    assert_same(Lit.load_from_checkpoint(tmp_path / "model.ckpt").state_dict(), module.state_dict())


def test_logged_thirds_are_those_of_the_audit(tmp_path):
    trainer, module, _ = fit(tmp_path)
    logits = module(VALIDATION[0]).detach()
    result = classmargin.audit(VALIDATION[1], logits=logits, ranking="own", bootstrap=0)
    for name in ("overall", "easy", "medium", "hard", "worst", "gap"):
        assert trainer.callback_metrics[f"val_{name}"].item() == pytest.approx(getattr(result, name), abs=1e-6)


def test_test_stage_logs_thirds_too(tmp_path):
    trainer, module, _ = fit(tmp_path)
    trainer.test(module, loader(VALIDATION), verbose=False)
    assert {"test_easy", "test_medium", "test_hard"} <= trainer.callback_metrics.keys()


def test_validation_never_moves_the_statistics(tmp_path):
    _, module, callback = fit(tmp_path)
    before = copy.deepcopy(callback.loss.state_dict())
    make_trainer([callback], tmp_path).validate(module, loader(VALIDATION), verbose=False)
    assert_same(callback.loss.state_dict(), before)


def test_module_has_its_cross_entropy_back_after_training(tmp_path):
    _, module, callback = fit(tmp_path)
    logits, labels = torch.randn(5, NUM_CLASSES), torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(module.criterion(logits, labels), nn.functional.cross_entropy(logits, labels))
    assert not module.net.head._forward_hooks
    assert callback.loss.statistics.updates > 0


def test_training_that_broke_off_can_be_started_again(tmp_path):
    """In a notebook module and callback outlive an error; statistics must go on moving with the second trainer."""

    class Breaks(Lit):
        broken = False

        def training_step(self, rows, number):
            if number == 2 and not self.broken:
                self.broken = True
                raise ArithmeticError("the third batch")
            return super().training_step(rows, number)

    module, callback = Breaks(), MR2Callback()
    with pytest.raises(ArithmeticError, match="the third batch"):
        make_trainer([callback], tmp_path).fit(module, loader(TRAIN), loader(VALIDATION))
    assert not module.net.head._forward_hooks
    assert "forward" not in vars(module.criterion)
    seen = int(callback.loss.statistics.updates)
    make_trainer([callback], tmp_path).fit(module, loader(TRAIN), loader(VALIDATION))
    assert int(callback.loss.statistics.updates) == seen + len(loader(TRAIN))


def test_settings_of_the_cross_entropy_go_on_to_count(tmp_path):
    weight = torch.linspace(0.5, 2.0, NUM_CLASSES)
    module = Lit(weight=weight, label_smoothing=0.1, ignore_index=-1)
    _, trained, callback = fit(tmp_path, module=module)
    assert torch.equal(callback.loss.weight, weight)
    assert (callback.loss.label_smoothing, callback.loss.ignore_index) == (0.1, -1)
    assert "criterion.weight" in trained.state_dict()


def test_thirds_can_be_left_out(tmp_path):
    trainer, _, _ = fit(tmp_path, log_thirds=False)
    assert set(trainer.callback_metrics) == {"val_loss", "mr2_logit_margin", "mr2_representation_margin"}


def test_validation_without_the_loss_warns_and_goes_on(tmp_path):
    class Silent(Lit):
        def validation_step(self, rows, _):
            self(rows[0])

    with pytest.warns(UserWarning, match="no thirds can be logged"):
        fit(tmp_path, module=Silent())


def test_several_validation_sets_have_thirds_of_their_own(tmp_path):
    torch.manual_seed(0)
    module, other = Lit(), batch(40, 2)
    trainer = make_trainer([MR2Callback()], tmp_path)
    trainer.fit(module, loader(TRAIN), [loader(VALIDATION), loader(other)])
    for number, (inputs, labels) in enumerate((VALIDATION, other)):
        result = classmargin.audit(labels, logits=module(inputs).detach(), ranking="own", bootstrap=0)
        for name in ("overall", "hard", "worst"):
            found = trainer.callback_metrics[f"val_{name}/loader_{number}"].item()
            assert found == pytest.approx(getattr(result, name), abs=1e-6)
    assert "val_hard" not in trainer.callback_metrics


def test_thirds_of_the_only_validation_set_with_a_loss_need_no_suffix(tmp_path):
    class FirstOnly(Lit):
        def validation_step(self, rows, _, dataloader_idx):
            if dataloader_idx == 0:
                super().validation_step(rows, _)

    trainer = make_trainer([MR2Callback()], tmp_path)
    trainer.fit(FirstOnly(), loader(TRAIN), [loader(VALIDATION), loader(TRAIN)])
    assert "val_hard" in trainer.callback_metrics


# --- selection


class Overfitting(Lit):
    """Learns so fast that its validation loss turns; remembers the cross-entropy of each validation."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            logits = self(VALIDATION[0])
            self.seen.append(nn.functional.cross_entropy(logits, VALIDATION[1]).item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


@pytest.mark.parametrize("inside", [False, True], ids=["callback", "two lines inside"])
def test_early_stopping_and_checkpoints_follow_the_cross_entropy(inside, tmp_path):
    torch.manual_seed(0)
    module, options = Overfitting(), {"label_smoothing": 0.0, "representation_weight": 2.0}
    margin = [] if inside else [MR2Callback(**options)]
    if inside:
        module.criterion = capture_features(module.net).criterion(**options)
    logged, patience = [], 4

    class Record(pl.Callback):
        def on_validation_end(self, trainer, _):
            if not trainer.sanity_checking:
                logged.append(trainer.callback_metrics["val_loss"].item())

    stop = pl.callbacks.EarlyStopping("val_loss", patience=patience)
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="val_loss", filename="{epoch}")
    trainer = make_trainer([*margin, Record(), stop, keep], tmp_path, 40, enable_checkpointing=True)
    trainer.fit(module, loader(TRAIN), loader(VALIDATION, len(VALIDATION[1])))
    assert logged == pytest.approx(module.seen, rel=1e-6)
    best = min(range(len(logged)), key=module.seen.__getitem__)
    assert 0 < best < 39 - patience
    assert len(logged) == best + patience + 1
    assert keep.best_model_path.endswith(f"epoch={best}.ckpt")
    assert keep.best_model_score.item() == pytest.approx(module.seen[best], rel=1e-6)


def test_parts_of_mr2_are_logged_under_their_own_names(tmp_path):
    trainer, _, _ = fit(tmp_path)
    names = {"mr2_logit_margin", "mr2_representation_margin"}
    assert names <= trainer.callback_metrics.keys()
    expected = by_hand(1)[2]
    for name in names:
        value = getattr(expected, name.removeprefix("mr2_"))
        torch.testing.assert_close(trainer.callback_metrics[name], value.detach())


def test_module_with_the_two_lines_inside_needs_no_callback(tmp_path):
    class Inside(Lit):
        def __init__(self):
            super().__init__()
            self.criterion = capture_features(self.net).criterion()

    trained = []
    for epochs, path in ((4, None), (2, None), (4, tmp_path / "half.ckpt")):
        module, trainer = Inside(), make_trainer([], tmp_path, epochs)
        trainer.fit(module, loader(TRAIN), loader(VALIDATION), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        trained.append(module.state_dict())
    assert_same(trained[2], trained[0])
    assert int(trained[2]["criterion.loss.statistics.updates"]) == 24


# --- what is refused


def test_module_without_a_cross_entropy_is_told_what_to_do():
    with pytest.raises(ValueError, match=r"got none. With F.cross_entropy, use classmargin.capture_features"):
        find_criterion(Network(), None)
    two = nn.ModuleDict({"a": nn.CrossEntropyLoss(), "b": nn.CrossEntropyLoss()})
    with pytest.raises(ValueError, match="got 2: a, b; give criterion="):
        find_criterion(two, None)
    assert find_criterion(two, "b") is two["b"]
    with pytest.raises(ValueError, match="got 'c'; it has a, b"):
        find_criterion(two, "c")


@pytest.mark.parametrize("automatic", [True, False])
def test_callback_that_changes_nothing_is_an_error(automatic, tmp_path):
    class Functional(Lit):
        def training_step(self, rows, _):
            loss = nn.functional.cross_entropy(self(rows[0]), rows[1])
            if automatic:
                return loss
            self.manual_backward(loss)
            self.optimizers().step()
            return None

    module = Functional()
    module.automatic_optimization = automatic
    with pytest.raises(RuntimeError, match=r"changes nothing: training_step of Functional did not call"):
        fit(tmp_path, module=module)
    assert not module.net.head._forward_hooks


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_batch_that_the_module_skips_is_no_error(tmp_path):
    class Skips(Lit):
        def training_step(self, rows, number):
            return None if number == 0 else super().training_step(rows, number)

    _, _, callback = fit(tmp_path, module=Skips())
    assert int(callback.loss.statistics.updates) == len(loader(TRAIN)) - 1


def test_sum_of_losses_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reduction='mean' to become MR², got 'sum'"):
        fit(tmp_path, module=Lit(reduction="sum"))


def test_missing_package_names_the_extra(without_package, monkeypatch):
    without_package("lightning")
    monkeypatch.delitem(sys.modules, "classmargin.integrations.lightning")
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[lightning\]'"):
        importlib.import_module("classmargin.integrations.lightning")


def test_example_of_lightning_runs(run_example):
    assert "hard" in run_example("lightning_callback.py")
