"""The training loop: from a config to a run directory, on one process or many. Runs can be interrupted and resumed.

train(TrainConfig(steps=100), Path("runs/first"))
train(None, Path("runs/first"), resume=True)                # continues from the newest checkpoint
"""

import math
import shlex
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch

from keysift.core.disk import write_json
from keysift.core.errors import ConfigError, DataError, TrainingError
from keysift.data.batches import Batch
from keysift.evaluate.validation import validate
from keysift.mechanisms.lookup import loaded_plugins
from keysift.models import losses
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.registry import build
from keysift.runs import checkpoint, machine, metrics
from keysift.runs.directory import Run
from keysift.runs.layout import DIAGNOSIS, FINISHED, INTERRUPTED, METRICS, TIME_OVER, newest_checkpoint, saved_step
from keysift.train import optimizer
from keysift.train.checkpoint import TrainingState
from keysift.train.config import TrainConfig, check_duration, check_unfinished, flatten, resolve, resumed
from keysift.train.diagnose import all_finite, diagnose
from keysift.train.distributed import World, accumulation_steps, autocast, distribute, process_group
from keysift.train.init import copy_weights, find_origin, model_config
from keysift.train.manifest import RunManifest, check_same_text, describe_session, read_manifest, write_manifest
from keysift.train.monitor import (
    TrackerLog,
    Trackers,
    TrainingProgress,
    UpdateAngles,
    format_duration,
    inspect_checkpoint,
    open_tracker,
)
from keysift.train.preflight import check_memory, flops_per_token
from keysift.train.schedule import lr_multiplier
from keysift.train.signals import StopRequest
from keysift.train.source import Stream, advance_stage, open_source

OnStep = Callable[[dict[str, Any]], None]


def train(
    config: TrainConfig | None, out: Path, *, resume: bool = False, show: bool = True, on_step: OnStep | None = None
) -> Path:
    """Train until the configured end or a stop signal; returns the newest checkpoint.

    resume    resume the run in `out`; `config` may be None, or change the fields in CHANGEABLE_ON_RESUME
    on_step   called on rank zero with each line of the metrics
    """
    run = Run(out)
    stored = read_manifest(run) if resume else None
    if config is None:
        if stored is None:
            raise ConfigError("a new run needs a config; pass one, or resume=True to resume a run")
        config = stored.config
    with process_group(config.device) as world:
        session = None
        try:
            # Signals are handled from the first step on: before it there is nothing to save.
            session = Session(config, run, stored, world, show=show, on_step=on_step)
            with StopRequest() as stop:
                session.run(stop)
        except OSError as error:
            raise TrainingError(
                f"writing in {out} failed ({error}); free some space or make it writable, then "
                f"keysift train --resume {out}"
            ) from error
        finally:
            if session is not None:
                session.close()
            session = None  # release its references to the process group before the group is destroyed
            run.unlock()
    newest = newest_checkpoint(out)
    assert newest is not None
    return newest


class Session:
    """One session of a run: set up, train, save."""

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        stored: RunManifest | None,
        world: World,
        *,
        show: bool,
        on_step: OnStep | None,
    ) -> None:
        self.directory, self.world, self.on_step = run, world, on_step
        check_duration(config)
        self.source = open_source(config, world, show=show)
        origin = stored.origin if stored else find_origin(config, self.source.tokenizer)
        vocab_size = self.source.tokenizer.vocab_size if origin is None else origin.vocab_size
        check_memory(config, vocab_size, world)
        generator = torch.Generator().manual_seed(config.seed)
        torch.manual_seed(config.seed)
        model = build(model_config(config, vocab_size), generator)
        if origin is not None and newest_checkpoint(run.path) is None:
            copy_weights(model, origin)
        parameters = count_parameters(model)
        self.config = resumed(stored.config, config) if stored else resolve(config, parameters)
        self.batches, self.validation = self.source.training(self.config), self.source.validation(self.config)
        self.manifest = RunManifest(
            plugins=loaded_plugins(),
            config=self.config,
            stream=self.batches.stream_hash,
            parameters=parameters,
            flops_per_token=flops_per_token(model, self.config.context),
            bytes_per_token=self.batches.bytes_per_token,
            origin=origin,
        )
        self.accumulation_steps = accumulation_steps(self.config, world)
        self.distributed = distribute(model, self.config, world)
        self.state = TrainingState.new(self.distributed, self.config)
        self.angles = UpdateAngles(self.distributed.parameters) if self.config.log_angles else None
        self.precision = autocast(self.config, world)
        dtype = torch.float32 if isinstance(self.precision, nullcontext) else torch.bfloat16
        self.peak_flops = machine.peak_flops(world.device, dtype)
        seconds = None if self.config.minutes is None else self.config.minutes * 60
        self.progress = TrainingProgress(self.config.steps, seconds, show=show and world.is_rank_zero)
        self.writer: metrics.Writer | None = None
        self.trackers = Trackers({}, self.progress.live.print)
        self._pool, self._closed = ThreadPoolExecutor(1), False
        if not world.same_on_all_ranks(self.manifest.stream):
            raise DataError(f"{config.data} is not the same text on every rank; give all ranks the same files")
        world.on_rank_zero(lambda: self._claim(stored))
        self._restore(stored)
        world.on_rank_zero(self._begin)

    def _claim(self, stored: RunManifest | None) -> None:
        """Claim and lock the run directory, or refuse. Called on rank zero."""
        if stored is None:
            self.directory.claim()
        else:
            check_same_text(self.directory, stored, self.manifest.stream)
        self.directory.sessions()
        self.directory.lock()
        self.directory.recover()
        check_unfinished(self.directory.path, self.config)

    def _restore(self, stored: RunManifest | None) -> None:
        newest = newest_checkpoint(self.directory.path)
        if newest is not None:
            self.state.load(newest)
            self.batches = self.source.training(self.config, self.state.stage)
        if stored is not None and stored.config.val_sequences != self.config.val_sequences:
            self.state.best = None  # it was measured on other validation sequences

    def _begin(self) -> None:
        """Write the manifest and the entry of this session, once all checks have passed. Called on rank zero."""
        path = self.directory.path
        settings = flatten(self.config)
        trackers: dict[str, TrackerLog] = {str(name): open_tracker(name, path, settings) for name in self.config.track}
        self.trackers = Trackers(trackers, self.progress.live.print)
        write_manifest(self.directory, self.manifest)
        (path / DIAGNOSIS).unlink(missing_ok=True)
        metrics.truncate(path / METRICS, saved_step(path))
        self.directory.add_session(
            describe_session(self.config, self.world, self.distributed.strategy, self.peak_flops)
        )
        self.writer = metrics.Writer(path)

    def run(self, stop: StopRequest) -> None:
        """Train until the session ends. The next batch is read while a step is computed."""
        config, state = self.config, self.state
        began = time.monotonic()
        with self.progress.live:
            self._print(self._greeting())
            prefetched = self._fetch(state.step)
            ending = False
            while not ending:
                started = time.perf_counter()
                batches = prefetched.result()
                waited = time.perf_counter() - started
                prefetched = self._fetch(state.step + 1)
                time_over = config.minutes is not None and time.monotonic() - began >= config.minutes * 60
                line, ending = self._step(batches, lambda over=time_over: stop.requested or over)  # type: ignore[misc]
                seconds = time.perf_counter() - started
                state.step += 1
                if self._advance_stage(line):
                    prefetched = self._fetch(state.step)
                state.seconds += seconds
                ending = ending or state.step == config.steps
                line.update(self._costs(seconds, waited))
                self.progress.step(line)
                if ending or state.step % config.save_every == 0:
                    self._checkpoint(line, batches, interrupted=self.world.any(stop.requested))
                else:
                    self._write(line)
            self._end(interrupted=self.world.any(stop.requested))

    def _end(self, *, interrupted: bool) -> None:
        state, path = self.state, self.directory.path
        ending = FINISHED if state.step == self.config.steps else INTERRUPTED if interrupted else TIME_OVER
        if self.world.is_rank_zero:
            self.directory.end_session(ending)
        self._print(f"{ending} at step {state.step} after {format_duration(state.seconds)}; saved in {path}")
        if ending != FINISHED:
            self._print(f"resume with: keysift train --resume {shlex.quote(str(path))}")

    def _step(self, batches: list[Batch], should_stop: Callable[[], bool]) -> tuple[dict[str, Any], bool]:
        """One optimizer step. Also returns whether any rank should stop, which is checked as late as possible."""
        config, distributed, state = self.config, self.distributed, self.state
        lr = (config.lr or 0.0) * lr_multiplier(config, state.step)
        optimizer.set_lr(state.optimizer, lr)
        state.optimizer.zero_grad(set_to_none=True)
        (tokens,) = self.world.sum(sum(map(losses.count_targets, batches)))
        sums, correct = [], []
        for number, batch in enumerate(batches):
            with distributed.gradient_sync(last=number == len(batches) - 1):
                with self.precision:
                    result = losses.batch_loss(distributed.model, batch.to(self.world.device))
                # Strategies average gradients over ranks; the weight of a token must not depend on their number.
                (result.loss * (self.world.size / tokens)).backward()  # type: ignore[no-untyped-call]
            sums.append(result.loss.detach())
            correct += [] if result.correct is None else [result.correct]
        distributed.average_unsharded_gradients()
        total, n_correct, stop = self.world.sum(sum(map(float, sums)), sum(map(float, correct)), float(should_stop()))
        mean = total / tokens
        norm = optimizer.gradient_norm(distributed.parameters)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            at = state.step + 1
            self._abort(at, f"the loss of step {at} is {mean:g} with gradient norm {norm:g}", batches)
        optimizer.clip_gradients(distributed.parameters, norm, config.clip or 0.0)
        if self.angles is not None:
            self.angles.before_step()
        state.optimizer.step()
        angles = self.angles.after_step() if self.angles is not None else {}
        if state.ema:
            optimizer.update_ema(state.ema, distributed.parameters, config.ema)
        line = {
            "step": state.step + 1,
            "loss": mean,
            **_bits("bits_per_byte", mean, self.batches),
            **({"accuracy": n_correct / tokens} if correct else {}),
            "lr": lr,
            "gradient_norm": norm,
            **angles,
        }
        return line, stop > 0

    def _advance_stage(self, line: dict[str, Any]) -> bool:
        """Update the curriculum after a step; returns whether a new stage begins."""
        state, stages = self.state, self.source.stages
        if stages == 1:
            return False
        line["stage"], before = state.stage, state.stage
        state.stage, state.mastery = advance_stage(before, state.mastery, line["accuracy"], stages)
        if state.stage == before:
            return False
        self.batches = self.source.training(self.config, state.stage)
        self._print(f"step {state.step}  stage {before} of {stages - 1} is mastered")
        return True

    def _checkpoint(self, line: dict[str, Any], batches: list[Batch], *, interrupted: bool) -> None:
        """Validate, save, then write samples and head statistics. When interrupted, only save."""
        state = self.state
        if not all_finite(self.distributed):
            self._abort(state.step, f"step {state.step} left non-finite weights", batches)
        if interrupted:
            self._print("interrupted: saving; a second signal exits at once")
        else:
            line.update(self._validate(batches))
        self._write(line)
        model = state.full_model()
        self._save(model)
        if self.world.is_rank_zero and not interrupted:
            tokens = self.validation.batch(0).inputs[:1]
            inspect_checkpoint(self.directory.path, model, self.source, tokens, self.config, state.step, self._print)

    def _validate(self, batches: list[Batch]) -> dict[str, Any]:
        began = time.perf_counter()
        state = self.state
        with state.ema_weights():
            loss, accuracy = validate(
                self.distributed.model,
                self.validation,
                self.config.val_sequences,
                precision=self.precision,
                processes=self.world,
            )
        if not math.isfinite(loss):
            self._abort(state.step, f"after step {state.step} the validation loss is {loss:g}", batches)
        if state.best is None or loss < state.best:
            state.best, state.best_step = loss, state.step
        bits = _bits("val_bits_per_byte", loss, self.validation)
        details = [f"{value:.3f} bits/byte" for value in bits.values()]
        details += [] if accuracy is None else [f"accuracy {accuracy:.1%}"]
        self._print(f"step {state.step}  validation {loss:.4f} ({', '.join(details)})")
        return {
            "val_loss": loss,
            **bits,
            **({} if accuracy is None else {"val_accuracy": accuracy}),
            "validation_seconds": time.perf_counter() - began,
        }

    def _save(self, model: LanguageModel) -> None:
        """Write a checkpoint. The metrics are synced first, so that after a crash no line before it is missing."""
        config, state = self.config, self.state
        if self.writer is not None:
            self.writer.sync()
        state.save(self.directory.checkpoints, self.source.tokenizer, model)
        if self.world.is_rank_zero:
            self.directory.link_model()
            best = state.best_step if config.keep_best else None
            checkpoint.remove_old_checkpoints(
                self.directory.checkpoints, last=config.keep_last, every=config.keep_every, best=best
            )
        self.world.barrier()

    def _abort(self, step: int, what: str, batches: list[Batch]) -> NoReturn:
        """Write a diagnosis of the non-finite value and stop, before any of it is saved."""
        findings = diagnose(self.distributed, [batch.to(self.world.device) for batch in batches])
        newest, path = newest_checkpoint(self.directory.path), self.directory.path
        diagnosis = {
            "step": step,
            "what": what,
            "lr": (self.config.lr or 0.0) * lr_multiplier(self.config, step - 1),
            "sequences": self.batches.batch(step - 1).rows,
            **findings,
            "last_good_checkpoint": newest.name if newest else None,
        }
        if self.world.is_rank_zero:
            write_json(path / DIAGNOSIS, diagnosis)
        where = findings["first_parameter"] or findings["first_output"] or findings["first_gradient"]
        remedy = (
            f"{newest.name} is intact: resume from it with keysift train --resume {path} and a lower --lr or --clip 1"
            if newest
            else "there is no checkpoint yet: start again with a lower --lr or --clip 1"
        )
        raise TrainingError(f"{what}, first seen in {where}; {path / DIAGNOSIS} has the details; {remedy}")

    def _costs(self, seconds: float, waited: float) -> dict[str, Any]:
        """Speed, MFU, memory and time of a step, for the metrics."""
        speed = self.config.batch_tokens / seconds
        return {
            "tokens": self.state.step * self.config.batch_tokens,
            "tokens_per_second": speed,
            "mfu": speed * self.manifest.flops_per_token / (self.peak_flops * self.world.size),
            "memory_bytes": machine.memory_bytes(self.world.device),
            "data_wait_share": waited / seconds,
            "seconds": self.state.seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self.writer is not None:
            self.writer.write(line)
            self.trackers.log(line)
        if self.on_step is not None and self.world.is_rank_zero:
            self.on_step(line)

    def _fetch(self, step: int) -> Future[list[Batch]]:
        """Read this rank's part of a step in the background."""
        parts, batches = self.accumulation_steps * self.world.size, self.batches

        def read() -> list[Batch]:
            own = range(self.world.rank, parts, self.world.size)
            # Stop reading a long step when the session is closed.
            return [batches.batch(step, part, parts) for part in own if not self._closed]

        return self._pool.submit(read)

    def _greeting(self) -> str:
        step, processes = self.state.step, self.world.size
        return (
            f"{f'resuming at step {step}' if step else 'training'}: {self.config.arch} with "
            f"{self.manifest.parameters:,} parameters on {self.config.data} in {self.directory.path}, "
            + (f"{processes} processes ({self.distributed.strategy})" if processes > 1 else "1 process")
        )

    def _print(self, text: str) -> None:
        self.progress.live.print(text)

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        self.distributed.close()
        self.trackers.finish()
        if self.writer is not None:
            self.writer.close()


def _bits(name: str, loss: float, batches: Stream) -> dict[str, float]:
    """Bits per byte of text from nats per token; empty if tokens are not text."""
    size = batches.bytes_per_token
    return {} if size is None else {name: loss / (math.log(2) * size)}
