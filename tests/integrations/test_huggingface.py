"""MR² in the Hugging Face Trainer: same loss, right under accumulation, exact on resume; images and text."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import classmargin
from classmargin import MR2Loss, capture_features

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from classmargin.integrations.huggingface import (  # noqa: E402
    STATISTICS_FILE,
    TrainerMargin,
    class_tier_metrics,
    restore_renamed_weights,
)

K = 3


def tiny_vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_labels=K,
    )
    return transformers.AutoModelForImageClassification.from_config(config)


TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def tiny_bert():
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=12, num_labels=K, **TEXT)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def samples(kind, count=24):
    """Return samples whose class shows in the brightness of the image or in the first word of the text."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        label = number % K
        if kind == "image":
            inputs = {"pixel_values": torch.randn(3, 8, 8, generator=generator) + 3 * (label - 1)}
        else:
            words = torch.randint(5, 20, (7,), generator=generator)
            inputs = {
                "input_ids": torch.cat([torch.tensor([label + 1]), words]),
                "attention_mask": torch.ones(8),
            }
        made.append({**inputs, "labels": torch.tensor(label)})
    return made


MODELS = {"image": tiny_vit, "text": tiny_bert}


def make_trainer(kind, folder, *, settings=None, margin=None, callbacks=(), model_init=None, **arguments):
    torch.manual_seed(0)
    model = None if model_init else MODELS[kind]()
    margin = TrainerMargin(model, **(margin or {}))
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 2,
        **(settings or {}),
    }
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(**options),
        train_dataset=samples(kind),
        eval_dataset=samples(kind),
        compute_loss_func=margin,
        callbacks=[margin, *callbacks],
        model_init=model_init,
        **arguments,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, margin


def everything(trainer, margin):
    return {**trainer.model.state_dict(), **{f"loss {k}": v for k, v in margin.loss.state_dict().items()}}


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(ours[name], value)] == []


@pytest.mark.parametrize("kind", ["image", "text"])
def test_resumed_training_equals_an_uninterrupted_one(kind, tmp_path):
    """With dropout, accumulation and a learning-rate schedule; 24 samples in micro-batches of 4 make 3 steps an epoch."""
    settings = {
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 5,
    }
    whole, margin = make_trainer(kind, tmp_path, settings=settings)
    whole.train()
    assert int(margin.loss.statistics.updates) == whole.state.global_step == 6
    for step in (2, 4) if kind == "text" else (4,):  # in the middle of an epoch, both
        again, other = make_trainer(kind, tmp_path, settings=settings)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert_same(everything(again, other), everything(whole, margin))


@pytest.mark.parametrize("kind", [pytest.param("image", marks=pytest.mark.slow), "text"])
def test_training_learns_and_logs_thirds(kind, tmp_path):
    trainer, _ = make_trainer(
        kind,
        tmp_path,
        settings={"num_train_epochs": 12, "eval_strategy": "epoch"},
        compute_metrics=class_tier_metrics,
    )
    trainer.train()
    evaluations = [entry for entry in trainer.state.log_history if "eval_hard" in entry]
    assert evaluations[-1]["eval_overall"] > 0.9
    assert {"eval_easy", "eval_medium", "eval_hard", "eval_worst", "eval_gap"} <= evaluations[-1].keys()


def steps_by_hand(kind, margin_options, micro_sizes):
    """Return gradients of one optimiser step over micro-batches of the given sizes, written out."""
    torch.manual_seed(0)
    model = MODELS[kind]().eval()  # no dropout, so that splitting a batch changes nothing else
    rows, start, total = samples(kind), 0, sum(micro_sizes)
    captured = capture_features(model)
    loss = MR2Loss.preset("recommended", K, **margin_options)
    for number, size in enumerate(micro_sizes):
        part = rows[start : start + size]
        start += size
        batch = {name: torch.stack([row[name] for row in part]) for name in part[0]}
        labels = batch.pop("labels")
        logits = model(**batch).logits
        value = loss(logits, labels, captured.features, update_statistics=number == 0)
        (value * size / total).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, loss


@pytest.mark.parametrize("options", [{}, {"margin_source": "uniform", "representation_weight": 0.0}])
def test_accumulated_gradient_is_the_mean_over_all_rows_of_the_step(options, tmp_path):
    """22 samples in micro-batches of 8, 8 and 6: the last counts less."""
    trainer, margin = make_trainer(
        "image",
        tmp_path,
        settings={"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3, "max_grad_norm": 0.0},
        margin=options,
    )
    model = trainer.model.eval()
    margin.on_step_begin(None, None, None)
    rows, start = samples("image"), 0
    for size in (8, 8, 6):
        part = rows[start : start + size]
        start += size
        batch = {name: torch.stack([row[name] for row in part]) for name in part[0]}
        labels = batch.pop("labels")
        margin(model(**batch), labels, num_items_in_batch=torch.tensor(22)).backward()
    expected, loss = steps_by_hand("image", options, (8, 8, 6))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])
    assert int(margin.loss.statistics.updates) == int(loss.statistics.updates) == 1
    if options:  # no statistics, no pairs: accumulation must equal the one large batch
        whole, _ = steps_by_hand("image", options, (22,))
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-6)


def test_trainer_itself_accumulates_to_the_large_batch(tmp_path):
    """The whole Trainer, one epoch of 24 rows, uniform margins: 3 micro-batches of 8 equal one batch of 24."""
    options = {"margin_source": "uniform", "mean_margin": 2.0, "representation_weight": 0.0}
    trained = []
    for size, accumulate in ((24, 1), (8, 3)):
        settings = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulate,
            "optim": "sgd",
            "num_train_epochs": 3,
        }
        trainer, margin = make_trainer("image", tmp_path, settings=settings, margin=options)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        assert int(margin.loss.statistics.updates) == 3
        trained.append((trainer.model.state_dict(), [e["loss"] for e in trainer.state.log_history if "loss" in e]))
    for name, value in trained[0][0].items():
        torch.testing.assert_close(trained[1][0][name], value, rtol=1e-4, atol=1e-6)
    assert trained[1][1] == pytest.approx(trained[0][1], rel=1e-3)


def test_loss_of_the_trainer_is_that_of_the_two_line_change(tmp_path):
    trainer, margin = make_trainer("text", tmp_path, margin={"mean_margin": 2.0})
    model = trainer.model.eval()
    batch = {name: torch.stack([row[name] for row in samples("text")]) for name in samples("text")[0]}
    labels = batch.pop("labels")
    by_hand, captured = MR2Loss.preset("recommended", K, mean_margin=2.0), capture_features(model)
    logits = model(**batch).logits
    expected = by_hand(logits, labels, captured.features)
    margin.on_step_begin(None, None, None)
    torch.testing.assert_close(margin({"logits": logits}, labels), expected)


def test_rows_that_do_not_count_are_left_out_of_the_share(tmp_path):
    trainer, margin = make_trainer("image", tmp_path)
    rows = samples("image", 8)
    images = torch.stack([row["pixel_values"] for row in rows])
    labels = torch.tensor([0, 1, 2, 0, -100, -100, 1, 2])
    values = []
    for kept in (torch.arange(8), torch.tensor([0, 1, 2, 3, 6, 7])):
        margin.on_step_begin(None, None, None)
        with torch.no_grad():
            outputs = trainer.model.eval()(images[kept])
            values.append(margin(outputs, labels[kept], num_items_in_batch=12))
    torch.testing.assert_close(*values)
    with torch.no_grad():
        mean = margin(trainer.model(images[kept]), labels[kept])
    torch.testing.assert_close(values[1], mean * 6 / 12)


def test_class_probabilities_count_by_rows_as_well(tmp_path):
    """The Trainer counts their entries: two micro-batches of 4 and 2 rows are 6 · K of them."""
    trainer, margin = make_trainer("image", tmp_path)
    images = torch.stack([row["pixel_values"] for row in samples("image", 6)])
    soft = torch.softmax(torch.randn(6, K, generator=torch.Generator().manual_seed(0)), 1)
    margin.on_step_begin(None, None, None)
    with torch.no_grad():
        share = margin(trainer.model.eval()(images[:4]), soft[:4], num_items_in_batch=soft.numel())
        mean = margin(trainer.model(images[:4]), soft[:4])
    torch.testing.assert_close(share, mean * 4 / 6)


@pytest.mark.parametrize(("given", "expected"), [({}, 0.1), ({"label_smoothing": 0.0}, 0.0)])
def test_label_smoothing_of_the_training_arguments_counts(given, expected, tmp_path):
    """The Trainer itself forgets it as soon as it has a loss function."""
    settings = {"label_smoothing_factor": 0.1, "num_train_epochs": 1}
    trainer, margin = make_trainer("text", tmp_path, settings=settings, margin=given)
    trainer.train()
    assert margin.loss.label_smoothing == expected


def test_label_smoothing_is_not_applied_to_probabilities(tmp_path):
    """Whoever mixes labels has smoothed them already."""
    settings = {"label_smoothing_factor": 0.1, "num_train_epochs": 1}
    trainer, margin = make_trainer("image", tmp_path, settings=settings)
    images = torch.stack([row["pixel_values"] for row in samples("image", 6)])
    soft = torch.softmax(torch.randn(6, K, generator=torch.Generator().manual_seed(0)), 1)
    logits = trainer.model.eval()(images).logits
    margin.on_step_begin(None, None, None)
    expected = MR2Loss(K, label_smoothing=0.0)(logits, soft, margin.criterion.capture.features)
    torch.testing.assert_close(margin({"logits": logits}, soft), expected)
    assert margin.loss.label_smoothing == 0.1


# --- selection and logs


class Record(transformers.TrainerCallback):
    """At each evaluation: its ``eval_loss``, and the cross-entropy of the model on the same samples by hand."""

    def __init__(self, kind):
        self.rows, self.logged, self.expected = samples(kind), [], []

    def on_evaluate(self, args, state, control, metrics, model, **kwargs):
        batch = {name: torch.stack([row[name] for row in self.rows]) for name in self.rows[0]}
        labels = batch.pop("labels")
        with torch.no_grad():
            self.expected.append(torch.nn.functional.cross_entropy(model.eval()(**batch).logits, labels).item())
        self.logged.append(metrics["eval_loss"])
        model.train()


def test_best_model_and_early_stopping_follow_the_cross_entropy(tmp_path):
    """A weight λ that ramps up all along lets the MR² loss rise while the cross-entropy falls."""
    record = Record("text")
    settings = {
        "num_train_epochs": 20,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 4,
        "save_steps": 4,
        "learning_rate": 3e-2,
        "per_device_eval_batch_size": 24,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
    }
    trainer, _ = make_trainer(
        "text",
        tmp_path,
        settings=settings,
        margin={"representation_weight": 5.0, "label_smoothing": 0.0},
        callbacks=[record, transformers.EarlyStoppingCallback(early_stopping_patience=3)],
    )
    trainer.train()
    assert record.logged == pytest.approx(record.expected, rel=1e-5)
    best = min(range(len(record.expected)), key=record.expected.__getitem__)
    assert best > 2
    assert trainer.state.best_global_step == 4 * (best + 1)
    assert trainer.state.best_metric == pytest.approx(record.expected[best], rel=1e-5)
    assert len(record.logged) == min(best + 4, 30)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(record.expected[best], rel=1e-5)


def test_parts_of_mr2_are_logged_with_the_training_loss(tmp_path):
    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            reported.append(dict(logs))

    reported = []
    trainer, margin = make_trainer(
        "text", tmp_path, settings={"num_train_epochs": 1, "logging_steps": 3}, callbacks=[Reporter()]
    )
    # Reporters stand before callbacks; the documented line puts the margin's callback first.
    trainer.add_callback(trainer.pop_callback(margin))
    trainer.callback_handler.callbacks.sort(key=lambda callback: callback is not margin)
    terms, compute = [], margin.criterion.terms

    def recorded(*arguments, **options):
        terms.append(compute(*arguments, **options))
        return terms[-1]

    margin.criterion.terms = recorded
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for number, entry in enumerate(logs):
        for name in ("logit_margin", "representation_margin"):
            values = [getattr(part, name).item() for part in terms[3 * number : 3 * number + 3]]
            assert entry[f"mr2_{name}"] == pytest.approx(sum(values) / 3)
    assert [entry["mr2_logit_margin"] for entry in reported if "loss" in entry] == [
        entry["mr2_logit_margin"] for entry in logs
    ]


# --- models that the Trainer makes


def test_margin_follows_a_model_of_model_init(tmp_path):
    """The Trainer makes one model when it is made, and another for each training."""
    trainer, margin = make_trainer("text", tmp_path, model_init=tiny_bert, margin={"mean_margin": 2.0})
    first = trainer.model
    assert margin.criterion.capture.layer is first.classifier
    trainer.train()
    assert trainer.model is not first
    assert margin.criterion.capture.layer is trainer.model.classifier
    assert not first.classifier._forward_hooks
    assert margin.loss.mean_margin == 2.0
    assert int(margin.loss.statistics.updates) == trainer.state.global_step
    again, other = make_trainer("text", tmp_path, model_init=tiny_bert, margin={"mean_margin": 2.0})
    again.train()
    again.train()  # a new model again, with statistics of its own
    assert_same(everything(again, other), everything(trainer, margin))


def test_second_training_of_the_same_model_keeps_its_statistics(tmp_path):
    trainer, margin = make_trainer("text", tmp_path)
    trainer.train()
    trainer.train()
    assert int(margin.loss.statistics.updates) == 2 * trainer.state.global_step


def test_hyperparameter_search_trains_each_trial_afresh(tmp_path):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trainer, margin = make_trainer(
        "text", tmp_path, model_init=tiny_bert, settings={"eval_strategy": "epoch", "num_train_epochs": 1}
    )
    updates = []

    class Count(transformers.TrainerCallback):
        def on_train_end(self, *_, **kwargs):
            updates.append(int(margin.loss.statistics.updates))

    trainer.add_callback(Count())
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)},
        backend="optuna",
        n_trials=2,
        direction="minimize",
    )
    assert updates == [6, 6]
    assert best.objective > 0


def test_margin_without_a_model_takes_that_of_the_trainer(tmp_path):
    torch.manual_seed(0)
    model, margin = tiny_bert(), TrainerMargin()
    with pytest.raises(RuntimeError, match=r"callbacks=\[margin\]"):
        _ = margin.loss
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
    transformers.Trainer(model, arguments, compute_loss_func=margin, callbacks=[margin])
    assert margin.criterion.capture.layer is model.classifier


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, {"bf16": True}])
def test_checkpointed_and_half_precision_training_works(settings, tmp_path):
    trained = []
    for given in ({}, settings):
        trainer, margin = make_trainer("text", tmp_path, settings=given)
        trainer.train()
        assert int(margin.loss.statistics.updates) == trainer.state.global_step
        trained.append(everything(trainer, margin))
    if "gradient_checkpointing" in settings:
        assert_same(*trained)


# --- checkpoints


@pytest.fixture
def finished(tmp_path):
    trainer, margin = make_trainer(
        "image", tmp_path / "run", settings={"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 1}
    )
    trainer.train()
    return tmp_path, margin


def resume(tmp_path, output, checkpoint, **margin):
    settings = {"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 1}
    trainer, made = make_trainer("image", tmp_path / output, settings=settings, margin=margin)
    trainer.train(resume_from_checkpoint=str(tmp_path / checkpoint))
    return made


def test_weights_under_their_own_names_are_left_to_the_trainer(tmp_path):
    model = tiny_bert()
    model.save_pretrained(tmp_path)
    assert not restore_renamed_weights(model, tmp_path)
    assert not restore_renamed_weights(torch.nn.Linear(2, 2), tmp_path)


def test_weights_under_older_names_are_restored(tmp_path):
    """What the Trainer's own resume leaves out of a ViT."""
    saved, fresh = tiny_vit(), tiny_vit()
    saved.save_pretrained(tmp_path)
    random_state = torch.get_rng_state()
    assert restore_renamed_weights(fresh, tmp_path)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same(fresh.state_dict(), saved.state_dict())


def test_statistics_are_in_the_checkpoint_folder_as_safetensors(finished):
    from safetensors.torch import load_file

    tmp_path, margin = finished
    saved = load_file(tmp_path / "run" / "checkpoint-6" / STATISTICS_FILE)
    assert_same(saved, dict(margin.loss.state_dict()))


def test_checkpoint_that_was_moved_is_found_by_its_folder(finished):
    tmp_path, margin = finished
    shutil.move(tmp_path / "run" / "checkpoint-6", tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"checkpoint \(step 6\).*resume_from="):
        resume(tmp_path, "new", "elsewhere")
    made = resume(tmp_path, "new", "elsewhere", resume_from=tmp_path / "elsewhere")
    assert_same(dict(made.loss.state_dict()), dict(margin.loss.state_dict()))


def test_statistics_of_another_run_are_never_taken(finished):
    """A folder of the same name and step from another run lies in output_dir."""
    tmp_path, _ = finished
    other, _ = make_trainer(
        "image",
        tmp_path / "other",
        settings={"save_strategy": "steps", "save_steps": 6, "num_train_epochs": 1, "learning_rate": 0.1},
    )
    other.train()
    with pytest.raises(FileNotFoundError, match=STATISTICS_FILE):
        resume(tmp_path, "other", "run/checkpoint-6")


def test_run_that_began_with_cross_entropy_can_go_on_with_mr2(finished):
    tmp_path, _ = finished
    (tmp_path / "run" / "checkpoint-6" / STATISTICS_FILE).unlink()
    made = resume(tmp_path, "run", "run/checkpoint-6", require_statistics=False)
    assert int(made.loss.statistics.updates) == 0


# --- any model

SEQUENCE = {
    "roberta": lambda: transformers.RobertaConfig(vocab_size=20, max_position_embeddings=12, **TEXT),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=20, max_position_embeddings=12, dim=16, n_layers=1, n_heads=2, hidden_dim=16
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=20, n_positions=12, n_embd=16, n_layer=1, n_head=2, pad_token_id=0
    ),
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=20, max_position_embeddings=12, num_key_value_heads=2, pad_token_id=0, **TEXT
    ),
}
IMAGES = {
    "resnet": lambda: transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ),
    "convnext": lambda: transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2),
    "swin": lambda: transformers.SwinConfig(
        image_size=8, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2
    ),
    "dinov2": lambda: transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    ),
}


@pytest.mark.parametrize("name", [*SEQUENCE, *IMAGES])
def test_head_of_any_classifier_is_found(name):
    """The captured features, through the head's weights, are the logits of the model."""
    torch.manual_seed(0)
    if name in SEQUENCE:
        config = SEQUENCE[name]()
        config.num_labels = K
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        words = torch.randint(1, 20, (4, 8))
        words[1, 5:] = 0  # padding: GPT-like models score the last word before it
        inputs = {"input_ids": words, "attention_mask": (words > 0).long()}
    else:
        config = IMAGES[name]()
        config.num_labels = K
        model = transformers.AutoModelForImageClassification.from_config(config)
        inputs = {"pixel_values": torch.randn(4, 3, 8, 8)}
    margin = TrainerMargin(model.eval())
    logits = model(**inputs).logits
    capture = margin.criterion.capture
    torch.testing.assert_close(capture.layer(capture.take(logits)), logits)


# --- what is refused


def test_forgotten_callback_is_an_error(tmp_path):
    model = tiny_vit()
    margin = TrainerMargin(model)
    with pytest.raises(RuntimeError, match=r"callbacks=\[margin\]"):
        margin(model(torch.randn(2, 3, 8, 8)), torch.tensor([0, 1]))


def test_batch_without_labels_is_an_error():
    with pytest.raises(ValueError, match="without 'labels'"):
        TrainerMargin(tiny_vit())({"logits": torch.zeros(2, K)}, None)


def test_label_that_the_trainer_would_count_is_an_error():
    with pytest.raises(ValueError, match=r"ignore_index must be -100, the Trainer's, got -1"):
        TrainerMargin(tiny_vit(), ignore_index=-1)


def test_several_labels_per_sample_are_refused():
    model = tiny_bert()
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="'multi_label_classification'"):
        TrainerMargin(model)
    model.config.problem_type = "single_label_classification"
    assert TrainerMargin(model).loss.num_classes == K


def test_labels_per_token_are_refused():
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=12, num_labels=K, **TEXT)
    model = transformers.AutoModelForTokenClassification.from_config(config)
    with pytest.raises(ValueError, match="got BertForTokenClassification: MR² has no form for a label per token"):
        TrainerMargin(model)
    margin = TrainerMargin(torch.nn.Sequential(torch.nn.Linear(4, K)))
    for context in (torch.no_grad, torch.enable_grad):
        with context(), pytest.raises(ValueError, match=r"one row per sample, got \(2, 5, 3\)"):
            margin({"logits": torch.zeros(2, 5, K)}, torch.zeros(2, 5, dtype=torch.long))


def test_wrong_head_is_an_error():
    model = tiny_vit()
    model.config.num_labels = 5
    with pytest.raises(ValueError, match="'classifier' has 3 outputs, the model's config has num_labels=5"):
        TrainerMargin(model)


def test_missing_package_names_the_extra(without_package, monkeypatch):
    without_package("transformers")
    monkeypatch.delitem(sys.modules, "classmargin.integrations.huggingface")
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[huggingface\]'"):
        importlib.import_module("classmargin.integrations.huggingface")


def test_thirds_equal_the_audit():
    random = np.random.default_rng(0)
    labels, scores = random.integers(K, size=90), random.standard_normal((90, K))
    result = classmargin.audit(labels, logits=scores, ranking="own", bootstrap=0)
    for predictions in (scores, (scores, "hidden states")):
        ours = class_tier_metrics(SimpleNamespace(predictions=predictions, label_ids=labels))
        assert ours == pytest.approx({name: getattr(result, name) for name in ours}, rel=1e-12)


def test_example_of_the_trainer_runs(run_example):
    printed = run_example("huggingface_trainer.py")
    assert "resumed" in printed
    assert "hard" in printed


def test_example_of_accelerate_trains_alone(run_example):
    assert "1 processes, 32 steps of the statistics" in run_example("accelerate_loop.py")


def test_example_of_accelerate_launches_in_two_processes(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    settings = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run([*launcher, *settings, str(example)], capture_output=True, text=True, cwd=tmp_path)
    assert "2 processes, 16 steps of the statistics" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


def test_lora_adapters_train_with_the_head(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed here; make test-newest runs this")
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["query", "value"], modules_to_save=["classifier"], r=2)
    model = peft.get_peft_model(tiny_bert(), config)
    margin = TrainerMargin(model)
    assert "classifier" in margin.criterion.capture.layer_name
    margin.on_init_end(SimpleNamespace(), None, None, model=model)
    margin.on_step_begin(None, None, None)
    tokens, labels = torch.randint(0, 20, (8, 6)), torch.arange(8) % K
    margin(model(input_ids=tokens), labels).backward()
    moved = {name for name, part in model.named_parameters() if part.grad is not None and part.grad.any()}
    assert any("lora" in name for name in moved)
    assert any("classifier" in name for name in moved)
