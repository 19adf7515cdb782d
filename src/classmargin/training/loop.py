"""The one loop. It knows no method, data set or network by name: they arrive as arguments.

The order of hooks is the pseudo-code of :mod:`classmargin.methods.base`. Everything random is either a function of
(seed, epoch, step) or in the checkpoint, so a run can be interrupted anywhere and resumes as if nothing had happened::

    Loop.run()
        _restore()                        newest whole checkpoint, if any
        for stage: _enter_stage()         fresh network?  schedule, loader, Fabric's wrapper
            for epoch: _train_epoch()     steps; checkpoints in between where asked for
                       _end_epoch()       evaluation on validation, log, checkpoint
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import check_int
from classmargin._distributed import gather_objects, rank, world_size
from classmargin._types import Batch
from classmargin.methods.base import Method, Stage
from classmargin.training import process_state, weights
from classmargin.training.config import RunConfig
from classmargin.training.devices import apply_memory_format, memory_format
from classmargin.training.evaluate import HEADLINES, Accuracies, HookContext, measure_accuracies
from classmargin.training.metric_logs import Evaluation, LossMeter, few_scalars
from classmargin.training.recorder import Recorder
from classmargin.training.run_progress import Watchers, words_of
from classmargin.training.soft_labels import SoftLabels
from classmargin.training.step import (
    NotFiniteError,
    Position,
    Stepper,
    TrainedModule,
    state_kept_precise,
    steps_between_checks,
)
from classmargin.training.stopping import DivergedError, StoppedError, StopRequest


@dataclass(frozen=True)
class Ingredients:
    """What arrives as arguments; ``teacher`` holds class probabilities of training samples by index, ``[N, K]``."""

    network: nn.Module
    method: Method
    new_network: Callable[[], nn.Module]
    loaders: Any  # recipes.run_parts.BundleLoaders: batches of training, and of each split in index order
    class_names: tuple[str, ...]
    teacher: Tensor | None = None


class Loop:
    """One training, from its first step or from its newest checkpoint to the last."""

    def __init__(
        self, config: RunConfig, ingredients: Ingredients, fabric: Any, recorder: Recorder, watchers: Watchers
    ) -> None:
        self.config, self.fabric, self.recorder, self.watchers = config, fabric, recorder, watchers
        self.loaders, self.class_names = ingredients.loaders, ingredients.class_names
        self.method: Method = ingredients.method.to(fabric.device)
        with state_kept_precise(self.method):
            fabric.strategy.precision.convert_module(self.method)
        self.position = Position()
        self.stages = self.method.stages(config.loop.epochs)
        self.epochs = sum(stage.epochs for stage in self.stages)
        self.stop = StopRequest()
        self._new_network = ingredients.new_network
        self._validation = self.loaders.evaluation("validation")
        data, classes = config.data, len(ingredients.class_names)
        self._soft_labels = SoftLabels(classes, data.mix, data.mix_alpha, config.loop.seed, rank(), ingredients.teacher)
        self._last: Accuracies | None = None
        self._meter = LossMeter()
        self._check_every = steps_between_checks(fabric.device)
        self._saved_statistics: list[dict[str, Any]] = []
        self._use_network(ingredients.network)
        self._check_settings()

    def _check_settings(self) -> None:
        """Refuse settings that do not go with one another, or with the method."""
        config = self.config
        if (config.data.mix != "none" or self._soft_labels.teacher is not None) and (
            not self.method.requirements.soft_labels
        ):
            asked = f"data.mix={config.data.mix}" if config.data.mix != "none" else "data.soft_labels"
            raise ValueError(
                f"method {config.method.name} needs one class per sample and cannot be trained with {asked}"
            )
        if self._validation is None and config.loop.select != "last":
            raise ValueError(
                f"loop.select={config.loop.select!r} needs validation samples, and data.validation left none"
            )
        averages = [name for name in ("ema_decay", "swa_start") if getattr(config.loop, name) is not None]
        if averages and config.loop.precision in ("bf16-true", "16-true"):
            mixed = config.loop.precision.replace("true", "mixed")
            raise ValueError(f"loop.{averages[0]} needs weights in full precision; use loop.precision={mixed}")

    def run(self) -> nn.Module:
        """Train to the end and return the network with the weights that count; a signal or divergence is an error."""
        try:
            with self.stop.listening():
                self._restore()
                while self.position.stage < len(self.stages):
                    stage = self.stages[self.position.stage]
                    self._enter_stage(stage)
                    ended = False
                    while not ended:
                        self._train_epoch()
                        ended = self._end_epoch(stage)
        finally:
            self.watchers.close()
            self.recorder.close()
        self.stop.pass_on()
        return self.weights.final_network()

    def _restore(self) -> None:
        process_state.seed_process(self.config.loop.seed, "training", rank())
        try:
            tree = self.recorder.open()
            if tree is not None:
                self._load(tree)
                process_state.restore_random_state(tree["random"], self.config.loop.seed, self.position.global_step)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the checkpoint was not written by this run ({type(error).__name__}: {error})") from error

    # Stages

    def _use_network(self, network: nn.Module) -> None:
        # Also the fresh network of a later stage: a resumed run would otherwise compute in another layout.
        layout = self.config.machine.memory_format
        network = apply_memory_format(network.to(self.fabric.device), layout)
        # Before optimiser and checkpoint come to it: what they hold is of the type of the weights.
        self.network = self.fabric.strategy.precision.convert_module(network)
        # An encoder that was frozen before the training began has to stay so.
        self._probe = bool(getattr(network, "encoder_frozen", False))
        self.optimizer = weights.make_optimizer(
            self.config.optimizer, self.network, self.method, self.config.learning_rate
        )
        self.weights = weights.WeightKeeper(self.network, self.config.loop)
        if self.config.loop.compile:
            # In place: names of parameters stay, and evaluation can go around it by calling forward.
            self.network.compile(dynamic=False)

    def _enter_stage(self, stage: Stage) -> None:
        at = self.position
        begins = at.stage_epoch == 0 and at.step == 0
        if begins and stage.fresh_model and at.stage > 0:
            process_state.seed_process(self.config.loop.seed, "weights", at.stage)
            self._use_network(self._new_network())
            process_state.seed_process(self.config.loop.seed, "stage", at.stage, rank())
        weights.choose_trainable(self.network, stage.train, probe=self._probe)
        if begins:
            self.method.on_stage_start(self._context())
        self._loader = self.loaders.training(
            sampler=stage.sampler, views=stage.views, multiplicity=self.method.sample_multiplicity(at.stage)
        )
        self._schedule = weights.make_schedule(
            self.config.schedule,
            peak=self.config.learning_rate * stage.learning_rate_scale,
            epochs=stage.epochs,
            steps_per_epoch=len(self._loader),
        )
        # The rate of the last finished step: an epoch that was stopped at its very end only has to be closed.
        self._rate = self._schedule(max(0, at.stage_epoch * len(self._loader) + at.step - 1))
        module = TrainedModule(self.network, self.method, staged=len(self.stages) > 1)
        # Not through self: a circle would keep data and network of a finished run until Python looks for
        # circles, and with this many modules loaded that is after dozens of runs.
        stop, recorder = self.stop, self.recorder

        def wishes() -> tuple[bool, bool]:
            return bool(stop), recorder.save_due

        self._stepper = Stepper(self.fabric, module, self.optimizer, self.config, wishes)
        # Only now: the data-parallel wrapper gives every process the buffers of rank 0 when it is made.
        process_state.restore_own(self._with_statistics(), self._saved_statistics)
        self._saved_statistics = []
        epochs_left = sum(later.epochs for later in self.stages[at.stage :]) - at.stage_epoch
        total = at.global_step - at.step + epochs_left * len(self._loader)
        self.watchers.start(total, at.global_step)

    def _context(self) -> HookContext:
        at = self.position
        batches = partial(self.batches, self.loaders.evaluation("train"))
        return HookContext(self.network, at.epoch, self.epochs, at.stage, at.global_step, batches, self.fabric)

    # Epochs and steps

    def _train_epoch(self) -> None:
        if self.position.step == 0:
            self._meter = LossMeter()
            self.method.on_epoch_start(self._context())
        self.network.train()
        self.method.train()
        for batch in self.batches(self._loader, self.position.epoch, self.position.step):
            self._train_step(self._soft_labels(batch, self.position.global_step))

    def batches(self, loader: Any, epoch: int = 0, start_step: int = 0) -> Iterator[Batch]:
        """Return batches of a loader as the network of this run wants them: on its device, in its memory format."""
        layout = memory_format(self.config.machine.memory_format)
        batches: Iterator[Batch] = loader.epoch(epoch, start_step, device=self.fabric.device, memory_format=layout)
        return batches

    def _train_step(self, batch: Batch) -> None:
        at = self.position
        self._rate = self._schedule(at.stage_epoch * len(self._loader) + at.step)
        weights.set_learning_rate(self.optimizer, self._rate)
        after = at._replace(step=at.step + 1, global_step=at.global_step + 1)
        every = self.config.loop.checkpoint_steps
        last, saves = after.step == len(self._loader), every > 0 and after.global_step % every == 0
        check = last or saves or after.global_step % self._check_every == 0
        # A compiled network would be compiled again for a batch of another size; it is called plainly then.
        full = batch.labels.shape[0] * world_size() == self.config.loop.batch_size * batch.views
        try:
            loss, (stop, save) = self._stepper.step(batch, at, full=full, check=check)
        except NotFiniteError as error:
            raise self._diverged(error, error.position, error.index) from error
        self.weights.after_step()
        self._meter.add(loss)
        self.position = after
        if self.watchers.due:
            self._report_progress()
        if stop:
            self._save()
            raise self._stopped()
        if not last and (save or saves):
            self._save()

    def _stopped(self) -> StoppedError:
        number = self.stop.signal_number or 15  # another process got the signal
        step = self.position.global_step
        return StoppedError(f"stopped by signal {number} after step {step}; resume with --resume", 128 + number)

    def _end_epoch(self, stage: Stage) -> bool:
        """Close an epoch, and the stage if it was its last; return whether it was."""
        self._check_weights()
        for module in self._with_statistics().values():
            process_state.average_running_statistics(module)
        self.method.on_epoch_end(self._context())
        at = self.position
        self.position = at._replace(step=0, stage_epoch=at.stage_epoch + 1, epoch=at.epoch + 1)
        self.weights.after_epoch(self.position.epoch / self.epochs)
        ends = self.position.stage_epoch == stage.epochs
        if ends or self.position.epoch % self.config.loop.evaluate_every == 0:
            self._evaluate()
        if ends:
            self.method.on_stage_end(self._context())
            self.position = self.position._replace(stage=at.stage + 1, stage_epoch=0)
        self._save()
        # A signal during the evaluation is not left for the next step: after the last one there is none.
        if any(gather_objects(bool(self.stop))):
            raise self._stopped()
        return ends

    def _evaluate(self) -> None:
        at = self.position
        if self.weights.averages_epochs:
            batches = self.batches(self._loader, at.epoch)
            process_state.refresh_running_statistics(self.weights.evaluated, batches, self.fabric)
        if self._validation is not None:
            batches, classes = self.batches(self._validation), len(self.class_names)
            network = self.weights.evaluated
            self._last = measure_accuracies(network, self.method, batches, classes, self.fabric)
            self.weights.after_evaluation(self._last, at.epoch)
        accuracies = self._last.scalars() if self._last else {}
        by_class = self._last.by_class.tolist() if self._last else []
        scalars = few_scalars(accuracies, self._meter.means(), self._rate)
        self.recorder.log(Evaluation(at.epoch, at.global_step, scalars, by_class))
        self._report_progress()

    def _report_progress(self) -> None:
        accuracies: dict[str, Any] = {}
        if self._last is not None:
            accuracies = {name: getattr(self._last, name) for name in HEADLINES}
            accuracies["class"] = self.class_names[self._last.worst_class]
        words = words_of(self.position.epoch, self.epochs, self._meter.means(), accuracies)
        self.watchers.advance(self.position.global_step, words)

    def _check_weights(self) -> None:
        """Stop before NaN or infinite weights are saved: they may overflow after a last, still finite loss."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.network.parameters()):
            raise self._diverged("a weight is no longer a number")

    def _diverged(self, why: object, at: Position | None = None, index: Tensor | None = None) -> DivergedError:
        at = at or self.position
        indices: list[int] = [] if index is None else index.tolist()
        named = ", ".join(map(str, indices[:16]))
        named += f" and {len(indices) - 16} more" if len(indices) > 16 else ""
        place = self.recorder.save_failure(at.global_step, self._tree(), {"sample_index": indices, "error": str(why)})
        samples = f" on the samples with index {named}" if indices else ""
        return DivergedError(
            f"{why} at step {at.global_step} (epoch {at.epoch + 1}, learning rate {self._rate:g}){samples}; "
            f"{place}. A smaller learning rate, a warm-up or optimizer.clip_norm may help."
        )

    # State

    def _save(self) -> None:
        self._check_weights()
        with process_state.averaged(self._with_statistics()) as everyone:
            tree = {**self._tree(), "rank_statistics": everyone}
            self.recorder.save(self.position.global_step, tree)

    def _with_statistics(self) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"network": self.network, "method": self.method}
        if self.weights.evaluated is not self.network:
            modules["average"] = self.weights.evaluated
        return modules

    def _tree(self) -> dict[str, Any]:
        return {
            "position": self.position._asdict(),
            "network": dict(self.network.state_dict()),
            "method": dict(self.method.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "precision": dict(self.fabric.strategy.precision.state_dict()),
            "weights": self.weights.state_dict(),
            "meter": self._meter.state_dict(),
        }

    def _load(self, tree: dict[str, Any]) -> None:
        self.position = Position(**tree["position"])
        for name, value in self.position._asdict().items():
            check_int(f"{name} in the checkpoint", value, minimum=0, maximum=2**53)
        check_int("stage in the checkpoint", self.position.stage, minimum=0, maximum=len(self.stages))
        # At or beyond the last epoch of its stage a training would never come to the end of it.
        last = max((stage.epochs for stage in self.stages[self.position.stage :][:1]), default=1) - 1
        check_int("stage_epoch in the checkpoint", self.position.stage_epoch, minimum=0, maximum=last)
        weights.load_weights(self.network, tree["network"], "the network")
        weights.load_weights(self.method, tree["method"], "the method")
        weights.load_optimizer(self.optimizer, tree["optimizer"])
        self.fabric.strategy.precision.load_state_dict(tree["precision"])
        self.weights.load_state_dict(tree["weights"])
        self._saved_statistics = tree.get("rank_statistics", [])
        self._meter.load_state_dict(tree["meter"], self.fabric.device)
