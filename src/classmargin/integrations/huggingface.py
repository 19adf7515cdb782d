"""MR² in the Hugging Face ``Trainer``, for any model with a classification head, of images or of text.

    margin = TrainerMargin()                                        # new
    trainer = Trainer(model, args, ..., compute_loss_func=margin, callbacks=[margin],
                      compute_metrics=class_tier_metrics)           # thirds at each evaluation, if wanted

With gradient accumulation a micro-batch counts by its rows among all rows of the optimiser step, over all processes, as
the Trainer's own losses do. The class statistics move once per step, with its first micro-batch; they are written into
each ``checkpoint-N`` folder and read back by ``trainer.train(resume_from_checkpoint=...)``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._checks import require_extra
from classmargin._distributed import all_reduce_sum, is_distributed, world_size
from classmargin.integrations.capture import CapturedMR2Loss, capture_features, logged_parts, unwrap
from classmargin.integrations.class_counts import count_classes, headlines

require_extra("transformers", "huggingface", "the Hugging Face Trainer integration")

from transformers import TrainerCallback  # noqa: E402

FORGOTTEN = "give the Trainer the margin as a callback too: Trainer(..., callbacks=[margin])"
STATISTICS_FILE = "class_margin.safetensors"
IGNORED_LABEL = -100  # the Trainer's


class TrainerMargin(TrainerCallback):
    """The loss function of one ``Trainer`` and a callback of it: give it as both.

    Args:
        model: The model that the Trainer trains; None takes it from the Trainer. Where the Trainer makes another one
            (``model_init``, a hyper-parameter search) the margin follows, with class statistics of its own.
        layer: Name of the classification head; None takes the last ``nn.Linear``.
        num_classes: ``K``; None takes it from the head.
        preset: Named hyper-parameters, see :meth:`classmargin.MR2Loss.preset`.
        resume_from: Folder of the checkpoint, needed only where ``train(resume_from_checkpoint=...)`` names one outside
            ``output_dir``, which the Trainer does not tell its callbacks.
        require_statistics: Whether resuming from a checkpoint without class statistics is an error; False starts them afresh.
        **options: Arguments of :class:`classmargin.MR2Loss` that win over the preset. Without ``label_smoothing`` the
            ``label_smoothing_factor`` of the training arguments counts. Either is for classes, not for labels that are
            probabilities.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        layer: str | None = None,
        num_classes: int | None = None,
        preset: str = "recommended",
        resume_from: str | Path | None = None,
        require_statistics: bool = True,
        **options: Any,
    ) -> None:
        if options.get("ignore_index", IGNORED_LABEL) != IGNORED_LABEL:
            raise ValueError(f"ignore_index must be {IGNORED_LABEL}, the Trainer's, got {options['ignore_index']!r}")
        self._settings = {"num_classes": num_classes, "preset": preset, **options}
        self._layer = layer
        self._criterion: CapturedMR2Loss | None = None
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.require_statistics = require_statistics
        self._takes_smoothing_of_trainer = "label_smoothing" not in options
        self._counts_all_devices = True
        self._first_of_step: bool | None = None
        self._parts: dict[str, Tensor] = {}  # sums of both parts since the last log
        self._calls = 0
        if model is not None:
            self.follow(model)

    @property
    def criterion(self) -> CapturedMR2Loss:
        """The loss as ``criterion(logits, labels)``; an error while there is no model yet."""
        if self._criterion is None:
            raise RuntimeError(FORGOTTEN)
        return self._criterion

    @property
    def loss(self) -> Any:
        """The :class:`classmargin.MR2Loss`."""
        return self.criterion.loss

    # --- the loss function of the Trainer ----------------------------------------------------------------------

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of a micro-batch, weighted by its share of the labels of the optimiser step."""
        if labels is None:
            raise ValueError("labels must be given to the MR² loss, got a batch without 'labels'")
        logits, training = _logits(outputs), torch.is_grad_enabled()
        if training:
            if self._first_of_step is None:
                raise RuntimeError(FORGOTTEN)
            first, self._first_of_step = self._first_of_step, False
            terms = self.criterion.terms(logits, labels, update_statistics=first)
            for name, part in logged_parts(terms).items():
                self._parts[name] = self._parts.get(name, 0.0) + part
            self._calls += 1
            total = terms.total
        else:
            total = self.criterion(logits, labels)
        if num_items_in_batch is None:
            return total
        return total * self._share(labels, num_items_in_batch, training)

    def _share(self, labels: Tensor, num_items: Tensor | int, training: bool) -> Tensor:
        rows = (labels != IGNORED_LABEL).sum()  # as the Trainer counts: entries, also of probabilities [B, K]
        whole = torch.as_tensor(num_items, device=labels.device)
        if not (training and is_distributed()):  # the loss is the mean over this process's rows
            return rows / whole
        # The loss is the mean over the rows of all processes, and its gradients are right after averaging; the
        # Trainer multiplies by the number of processes where its count is that of all devices.
        rows = all_reduce_sum(rows)
        return rows / whole / world_size() if self._counts_all_devices else rows / all_reduce_sum(whole)

    # --- the callback ------------------------------------------------------------------------------------------

    def follow(self, model: nn.Module) -> None:
        """Take the features and a new loss for ``model``, unless its head is the one that is captured already."""
        if self._criterion is not None:
            if any(module is self._criterion.capture.layer for module in model.modules()):
                return
            self._criterion.capture.close()
        _check_task(unwrap(model))
        capture = capture_features(model, self._layer)
        stated = getattr(getattr(unwrap(model), "config", None), "num_labels", None)
        if isinstance(stated, int) and capture.num_classes not in (None, stated):
            raise ValueError(
                f"layer must name the classification head: the last nn.Linear {capture.layer_name!r} has {capture.num_classes} "
                f"outputs, the model's config has num_labels={stated}"
            )
        self._criterion = capture.criterion(**self._settings)
        self._criterion.smooth_probabilities = False

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over the Trainer's model and settings."""
        model = kwargs.get("model")
        if model is not None:
            self.follow(model)
        self._counts_all_devices = bool(getattr(args, "average_tokens_across_devices", False))
        smoothing = float(getattr(args, "label_smoothing_factor", 0.0))
        if self._takes_smoothing_of_trainer and smoothing:
            self.loss.label_smoothing = smoothing

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over model and settings, which may be others by now; restore the statistics if the Trainer resumes."""
        self.on_init_end(args, state, control, **kwargs)
        self._parts, self._calls = {}, 0
        folder = self._find_checkpoint(args, state) if state.global_step else None
        if folder is not None:
            from safetensors.torch import load_file

            self.loss.load_state_dict(load_file(folder / STATISTICS_FILE))
            if kwargs.get("model") is not None:
                restore_renamed_weights(unwrap(kwargs["model"]), folder)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimiser step begins: its first micro-batch may move the statistics."""
        self._first_of_step = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the mean parts of MR² since the last time to the logs of the training loss."""
        if not logs or "loss" not in logs or not self._parts:
            return
        parts = {name: float(total) / self._calls for name, total in self._parts.items()}
        self._parts, self._calls = {}, 0
        logs.update(parts)
        if state.log_history:  # the Trainer has written a copy of the logs there already
            state.log_history[-1].update(parts)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the statistics into the checkpoint folder that the Trainer has just written."""
        # A hyper-parameter search has folders of its own for each trial and never resumes.
        if not args.should_save or state.is_hyper_param_search:
            return
        from safetensors.torch import save_file

        tensors = {name: value.detach().cpu().contiguous() for name, value in self.loss.state_dict().items()}
        with atomic_path(_checkpoint_folder(args, state) / STATISTICS_FILE) as path:
            save_file(tensors, path, metadata=_identity(state))

    def _find_checkpoint(self, args: Any, state: Any) -> Path | None:
        from safetensors import safe_open

        named = getattr(args, "resume_from_checkpoint", None)
        places = (self.resume_from, named, _checkpoint_folder(args, state))
        folders = [Path(place) for place in places if isinstance(place, (str, Path))]
        for folder in folders:
            file = folder / STATISTICS_FILE
            if file.exists():
                with safe_open(file, framework="pt") as opened:
                    if opened.metadata() == _identity(state):
                        return folder
        if self.require_statistics:
            raise FileNotFoundError(
                f"no {STATISTICS_FILE} of this checkpoint (step {state.global_step}) in {', '.join(map(str, folders))}; "
                "give TrainerMargin resume_from=FOLDER, or require_statistics=False to start them afresh"
            )
        return None


def class_tier_metrics(prediction: Any) -> dict[str, float]:
    """Return overall, easy, medium, hard, worst and gap for ``Trainer(compute_metrics=class_tier_metrics)``."""
    scores, labels = prediction.predictions, prediction.label_ids
    scores = torch.as_tensor(scores[0] if isinstance(scores, tuple) else scores)
    labels = torch.as_tensor(labels).long()
    return headlines(count_classes(scores, labels, scores.shape[1], ignore_index=IGNORED_LABEL))


def restore_renamed_weights(model: nn.Module, folder: Path) -> bool:
    """Load weights of a checkpoint that the Trainer's resume has left out; return whether there were any.

    transformers 5 saves some models (ViT) under older names, which ``Trainer.train(resume_from_checkpoint=...)`` does
    not read back: it goes on with random weights in their place (huggingface/transformers issue 43701).
    """
    file, load = folder / "model.safetensors", getattr(type(model), "from_pretrained", None)
    if load is None or not file.exists():
        return False
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        saved = set(opened.keys())
    if saved >= set(model.state_dict()):
        return False
    with torch.random.fork_rng(devices=[]):  # building a model must not move the random state of the training
        twin = load(str(folder), local_files_only=True)
    model.load_state_dict(twin.state_dict())
    return True


def _logits(outputs: Any) -> Tensor:
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if logits.dim() != 2:
        raise ValueError(f"logits must have shape [B, K], one row per sample, got {tuple(logits.shape)}")
    return logits


def _check_task(model: nn.Module) -> None:
    task = getattr(getattr(model, "config", None), "problem_type", None)
    if task in ("multi_label_classification", "regression"):
        raise ValueError(
            f"the model's config must have problem_type='single_label_classification' or None, got {task!r}"
        )
    if "ForTokenClassification" in type(model).__name__:
        raise ValueError(
            f"model must be a classifier of whole samples, got {type(model).__name__}: MR² has no form for a label per token"
        )


def _checkpoint_folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _identity(state: Any) -> dict[str, str]:
    """Name the checkpoint by its step and by what was logged until then: another run has other losses."""
    history = json.dumps(state.log_history, sort_keys=True, default=str)
    return {"step": str(state.global_step), "history": hashlib.sha256(history.encode()).hexdigest()}
