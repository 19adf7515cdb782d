"""MR² for timm: the loss object on a stand-in everywhere, on timm itself where it is installed (``make test-timm``)."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from toy_training import NUM_CLASSES, Network, batch

from classmargin import MR2Loss
from classmargin.backbones import create_backbone
from classmargin.integrations.timm import keep_statistics, mr2_loss


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
    mixed = 0.7 * nn.functional.one_hot(labels, NUM_CLASSES) + 0.3 * nn.functional.one_hot(labels.flip(0), NUM_CLASSES)
    assert torch.isfinite(mr2_loss(model)(model(inputs), mixed))


def test_mixed_targets_are_not_smoothed_again():
    """timm's mixup puts the smoothing into the targets that it makes."""
    model = TimmLike()
    inputs, _ = batch(8, 0)
    mixed = torch.softmax(torch.randn(8, NUM_CLASSES), 1)
    values = [mr2_loss(model, smoothing=smoothing)(model(inputs), mixed) for smoothing in (0.0, 0.1)]
    assert torch.equal(*values)


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


class TaskLike:
    """The part of ``timm.task.TrainingTask`` that keeps what is no weight of the model."""

    def __init__(self):
        self.loaded = "nothing"

    def get_task_state(self, module=None, ema=False):
        return {"own": 1}

    def load_task_state(self, state, strict=True, module=None, ema=False):
        self.loaded = state


def trained_loss(model, steps):
    loss_fn = mr2_loss(model, preset="paper")
    for seed in range(steps):
        inputs, labels = batch(8, seed)
        loss_fn(model(inputs), labels).backward()
    return loss_fn


def test_statistics_survive_in_the_state_of_a_task():
    before, after = trained_loss(TimmLike(), 45), trained_loss(TimmLike(), 0)
    tasks = TaskLike(), TaskLike()
    for loss_fn, task in zip((before, after), tasks, strict=True):
        keep_statistics(loss_fn, task)
    assert mr2_loss(TimmLike()).loss.class_margins.allclose(torch.ones(NUM_CLASSES))
    assert before.loss.class_margins.std() > 1e-3  # long enough that margins are no longer equal
    tasks[1].load_task_state(tasks[0].get_task_state(), strict=True)
    assert tasks[1].loaded == {"own": 1}
    assert int(after.loss.statistics.updates) == 45
    assert torch.equal(after.loss.class_margins, before.loss.class_margins)
    tasks[1].load_task_state(None)  # a checkpoint of another loss


@pytest.mark.parametrize("resumes_first", [True, False], ids=["before the loss is made", "after it"])
def test_statistics_survive_in_the_state_of_an_optimizer(resumes_first, tmp_path):
    model = TimmLike()
    before, optimizer = trained_loss(model, 45), torch.optim.AdamW(model.parameters())
    keep_statistics(before, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model, other = TimmLike(), None
    other = torch.optim.AdamW(model.parameters())
    after = trained_loss(model, 0)
    if resumes_first:
        other.load_state_dict(state)
    keep_statistics(after, other)
    if not resumes_first:
        other.load_state_dict(state)
    assert int(after.loss.statistics.updates) == 45
    assert torch.equal(after.loss.class_margins, before.loss.class_margins)
    inputs, labels = batch(8, 0)
    after(model(inputs), labels).backward()
    other.step()


def test_statistics_need_a_keeper():
    with pytest.raises(TypeError, match=r"keeper must be a task of timm or an optimizer, got Network"):
        keep_statistics(mr2_loss(TimmLike()), Network())


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
    from classmargin.backbones.library_families import load_timm

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
    head = model.get_classifier()  # not called: another call of the head would be the last one
    torch.testing.assert_close(torch.nn.functional.linear(features, head.weight, head.bias), logits)
    loss_fn(logits, labels).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model.get_classifier().weight.grad.abs().sum() > 0


# --- timm's own train.py -------------------------------------------------------------------------------------------

DOCUMENTED = (
    (
        "    train_loss_fn = train_loss_fn.to(device=device)\n",
        (
            "    from classmargin.integrations.timm import keep_statistics, mr2_loss\n"
            "    train_loss_fn = mr2_loss(model, smoothing=args.smoothing, accumulate=args.grad_accum_steps)\n"
        ),
    ),
    (
        "    model = task.get_trainable_module()\n    eval_model = task.get_eval_model()\n\n    optimizer",
        "    keep_statistics(train_loss_fn, task)\n",
    ),
)
LAUNCH = """
import runpy, sys
from torch.nn.parallel import DistributedDataParallel
from classmargin.backbones.library_families import load_timm
load_timm()
own = DistributedDataParallel.__init__
def on_the_cpu(self, module, device_ids=None, **more):  # timm's script gives the CPU as device_ids, which torch refuses
    own(self, module, **more)
DistributedDataParallel.__init__ = on_the_cpu
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def train_script(tmp_path, timm):
    """Return a function that runs timm's train.py with the documented lines and returns the updates in its checkpoint.

    The script is in timm's repository and not in its package: ``TIMM_TRAIN_SCRIPT`` names a copy.
    """
    if "TIMM_TRAIN_SCRIPT" not in os.environ:
        pytest.skip("TIMM_TRAIN_SCRIPT does not name timm's train.py")
    text = Path(os.environ["TIMM_TRAIN_SCRIPT"]).read_text(encoding="utf-8")
    for place, lines in DOCUMENTED:
        assert text.count(place) == 1, f"another train.py: {place!r}"
        text = text.replace(place, lines + place)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    (tmp_path / "launch.py").write_text(LAUNCH, encoding="utf-8")
    draw = np.random.default_rng(0)
    for part, count in (("train", 16), ("validation", 6)):
        for k in range(3):
            folder = tmp_path / "data" / part / f"class{k}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.normal(60 + 60 * k, 40, (32, 32, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")

    def run(name, *more, processes=1):
        words = [
            "--data-dir",
            "data",
            "--model",
            "test_vit",
            "--num-classes",
            "3",
            "--input-size",
            "3",
            "160",
            "160",
        ]
        words += [
            "-b",
            "8",
            "--device",
            "cpu",
            "--workers",
            "0",
            "--opt",
            "adamw",
            "--lr",
            "1e-3",
            "--warmup-epochs",
            "0",
        ]
        words += ["--no-prefetcher", "--output", "out", "--experiment", name, "--smoothing", "0.1", *more]
        start = ["-m", "torch.distributed.run", "--nproc_per_node", "2"] if processes == 2 else []
        done = subprocess.run(
            [sys.executable, *start, "launch.py", "train.py", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        last = torch.load(tmp_path / "out" / name / "last.pth.tar", weights_only=False)
        return int(last["task_state"]["classmargin_statistics"]["statistics.updates"])

    return run


@pytest.mark.slow
def test_statistics_survive_the_resume_of_timms_own_script(train_script, tmp_path):
    """Six batches an epoch."""
    assert train_script("half", "--epochs", "2", "--model-ema") == 12
    last = str(tmp_path / "out" / "half" / "last.pth.tar")
    assert train_script("whole", "--epochs", "4", "--model-ema", "--resume", last) == 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "processes", "updates"),
    [
        (["--mixup", "0.5"], 1, 6),
        (["--amp", "--amp-dtype", "bfloat16"], 1, 6),
        (["--torchcompile", "eager", "--model-ema"], 1, 6),
        (["--torchcompile", "aot_eager", "--model-ema"], 2, 3),
    ],
    ids=["mixup", "half precision", "compiled", "compiled in two processes"],
)
def test_timms_own_script_trains_with_the_documented_lines(train_script, more, processes, updates):
    assert train_script("run", "--epochs", "1", *more, processes=processes) == updates
