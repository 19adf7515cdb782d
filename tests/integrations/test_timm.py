"""MR² for timm: the loss object on a stand-in everywhere, on timm itself where it is installed (``make test-timm``)."""

import pytest
import torch
from torch import nn
from toy_training import NUM_CLASSES, Network, batch

from classmargin import MR2Loss
from classmargin.backbones import create_backbone
from classmargin.integrations.timm import mr2_loss


class TimmLike(Network):
    """The part of timm's interface that the loss uses; a further linear layer comes after the classifier."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def get_classifier(self):
        return self.head


def test_classifier_is_the_one_the_model_names():
    model = TimmLike()
    loss_fn = mr2_loss(model, smoothing=0.1, mean_margin=2.0)
    assert loss_fn.capture.layer is model.head
    inputs, labels = batch(8, 0)
    features = 3.0 * model.encoder(inputs)
    expected = MR2Loss.preset("recommended", NUM_CLASSES, label_smoothing=0.1, mean_margin=2.0)(
        model.head(features), labels, features
    )
    torch.testing.assert_close(loss_fn(model(inputs), labels), expected)


def test_mixed_targets_are_taken():
    model = TimmLike()
    inputs, labels = batch(8, 0)
    mixed = 0.7 * nn.functional.one_hot(labels, NUM_CLASSES) + 0.3 * nn.functional.one_hot(
        labels.flip(0), NUM_CLASSES
    )
    assert torch.isfinite(mr2_loss(model)(model(inputs), mixed))


@pytest.mark.parametrize(("accumulate", "updates"), [(1, 6), (2, 3), (3, 2)])
def test_statistics_move_once_an_optimiser_step(accumulate, updates):
    model = TimmLike()
    loss_fn = mr2_loss(model, accumulate=accumulate)
    for seed in range(6):
        inputs, labels = batch(8, seed)
        loss_fn(model(inputs), labels).backward()
        with torch.no_grad():  # an evaluation in between counts for nothing
            loss_fn(model(inputs), labels)
    assert int(loss_fn.loss.statistics.updates) == updates


def test_other_models_are_refused():
    with pytest.raises(TypeError, match=r"timm's get_classifier\(\), got Network"):
        mr2_loss(Network())

    class Distilled(TimmLike):
        def get_classifier(self):
            return self.head, self.unused

    with pytest.raises(TypeError, match="one classifier, got tuple"):
        mr2_loss(Distilled())


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [("timm", "timm", "timm:resnet18"), ("open_clip", "open-clip", "open_clip:ViT-B-32")],
)
def test_missing_package_names_the_extra(package, extra, name, without_package):
    without_package(package)
    with pytest.raises(ImportError, match=rf"pip install 'classmargin\[{extra}\]'"):
        create_backbone(name, num_classes=3)


def test_example_of_the_train_script_runs(run_example):
    assert "loss" in run_example("timm_train_script.py")


def test_example_of_the_encoders_runs_or_names_the_extra(run_example):
    printed = run_example("timm_and_open_clip_encoders.py")
    for extra, name in (("timm", "timm:resnet18"), ("open-clip", "open_clip:ViT-B-32")):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{name}: ")]
        assert "features (6, 512), loss" in line or f"classmargin[{extra}]" in line


# --- with timm itself

TINY = {  # name: options that make it small
    "resnet18": {},
    "vit_tiny_patch16_224": {},
    "mobilenetv3_small_050": {},
    "convnext_atto": {},
}


@pytest.fixture
def timm():
    from classmargin.backbones.timm_family import load_timm

    try:
        return load_timm()
    except ImportError:
        pytest.skip("timm is not installed here; make test-timm runs this")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_timm_encoder_gives_what_the_classifier_gets(timm, name):
    torch.manual_seed(0)
    whole = timm.create_model(name, num_classes=5).eval()
    backbone = create_backbone(f"timm:{name}", num_classes=5).eval()
    backbone.encoder.load_state_dict(backbone.encoder.adapt_state(whole.state_dict()), strict=True)
    backbone.head.load_state_dict(whole.get_classifier().state_dict())
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images).logits, whole(images), rtol=1e-4, atol=1e-5)
    assert backbone.input_mean == tuple(whole.pretrained_cfg["mean"])


@pytest.mark.slow
def test_timm_checkpoint_and_grey_images_and_other_sizes(timm, tmp_path):
    from safetensors.torch import save_file

    whole = timm.create_model("resnet18", num_classes=7)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    backbone = create_backbone(
        "timm:resnet18",
        num_classes=3,
        in_channels=1,
        input_size=64,
        checkpoint=tmp_path / "model.safetensors",
    )
    assert torch.equal(backbone.encoder.model.conv1.weight, whole.conv1.weight)
    assert backbone(torch.randn(2, 1, 64, 64)).logits.shape == (2, 3)
    small = create_backbone("timm:vit_tiny_patch16_224", num_classes=3, input_size=32, drop_path_rate=0.1)
    assert small(torch.randn(2, 3, 32, 32)).features.shape == (2, 192)


@pytest.mark.slow
def test_timm_model_of_another_name_is_answered_with_the_nearest(timm):
    with pytest.raises(ValueError, match=r"timm has no model 'resnet118'.*did you mean"):
        create_backbone("timm:resnet118", num_classes=3)
    with pytest.raises(ValueError, match=r"nothing is downloaded. Get timm/resnet18"):
        create_backbone("timm:resnet18", num_classes=3, pretrained=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_timm_model_trains_with_the_loss_object(timm, name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3)
    loss_fn = mr2_loss(model, smoothing=0.1)
    images, labels = torch.randn(4, 3, 224, 224), torch.tensor([0, 1, 2, 0])
    logits = model(images)
    features = loss_fn.capture.features
    torch.testing.assert_close(model.get_classifier()(features), logits)
    loss_fn(logits, labels).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model.get_classifier().weight.grad.abs().sum() > 0
