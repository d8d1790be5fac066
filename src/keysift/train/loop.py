"""The training loop: from a config to a run directory, on one process or many, stopped and resumed at will.

train(TrainConfig(steps=100), Path("runs/first"))
train(None, Path("runs/first"), resume=True)                # resumes where it stopped
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

from keysift.core.errors import ConfigError, DataError, TrainingError
from keysift.data.batches import Batch
from keysift.evaluate import validation
from keysift.models.kinds import build
from keysift.models.language import LanguageModel, count
from keysift.runs import checkpoint, machine, metrics
from keysift.runs.directory import Run, write_json
from keysift.runs.layout import DIAGNOSIS, FINISHED, INTERRUPTED, METRICS, TIME_OVER, newest, saved
from keysift.train import optimizer
from keysift.train.config import TrainConfig, changed, flatten, needs_an_end, refuse_finished, resolve
from keysift.train.costs import flops_per_token
from keysift.train.curriculum import advance
from keysift.train.diagnose import diagnose, finite
from keysift.train.distributed import World, joined
from keysift.train.facts import Facts, describe_session, read_facts, refuse_other_text, write_facts
from keysift.train.init import adopt, find_origin
from keysift.train.inspection import inspect
from keysift.train.limits import refuse_too_large
from keysift.train.progress import Display, clock
from keysift.train.schedule import share
from keysift.train.setup import accumulation_steps, autocast, model_config, share_model
from keysift.train.signals import Stop
from keysift.train.source import Stream, open_source
from keysift.train.state import State
from keysift.train.trackers import Log, Trackers, open_tracker
from keysift.train.turning import Turning

OnStep = Callable[[dict[str, Any]], None]


def train(
    config: TrainConfig | None, out: Path, *, resume: bool = False, show: bool = True, on_step: OnStep | None = None
) -> Path:
    """Train until the config says so or somebody asks to stop; returns the newest checkpoint.

    resume    resume the run in `out`; `config` may change what is changeable, or be None
    on_step   called with each line of the metrics, by the first process
    """
    run = Run(out)
    stored = read_facts(run) if resume else None
    if config is None:
        if stored is None:
            raise ConfigError("a new run needs a config; pass one, or resume=True to resume an old run")
        config = stored.config
    with joined(config.device) as world:
        session = None
        try:
            # Signals are caught from the first step on: before it there is nothing to save.
            session = Session(config, run, stored, world, show=show, on_step=on_step)
            with Stop() as stop:
                session.go(stop)
        except OSError as error:
            raise TrainingError(
                f"writing in {out} failed ({error}); make room or make it writable, then keysift train --resume {out}"
            ) from error
        finally:
            if session is not None:
                session.close()
            session = None  # what it holds of the process group ends before the group does
            run.unlock()
    made = newest(out)
    assert made is not None
    return made


class Session:
    """One session of a run: set up, step, save."""

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        stored: Facts | None,
        world: World,
        *,
        show: bool,
        on_step: OnStep | None,
    ) -> None:
        self.run, self.world, self.on_step = run, world, on_step
        needs_an_end(config)
        self.source = open_source(config, world, show=show)
        origin = stored.origin if stored else find_origin(config, self.source.tokenizer)
        vocab_size = self.source.tokenizer.vocab_size if origin is None else origin.vocab_size
        refuse_too_large(config, vocab_size, world)
        generator = torch.Generator().manual_seed(config.seed)
        torch.manual_seed(config.seed)
        model = build(model_config(config, vocab_size), generator)
        if origin is not None and newest(run.path) is None:
            adopt(model, origin)
        parameters = count(model)
        self.config = changed(stored.config, config) if stored else resolve(config, parameters)
        self.batches, self.validation = self.source.training(self.config), self.source.validation(self.config)
        self.facts = Facts(
            config=self.config,
            stream=self.batches.stream_hash,
            parameters=parameters,
            flops_per_token=flops_per_token(model, self.config.context),
            bytes_per_token=self.batches.bytes_per_token,
            origin=origin,
        )
        self.accumulation_steps = accumulation_steps(self.config, world)
        self.shared = share_model(model, self.config, world)
        self.state = State.new(self.shared, self.config)
        self.turning = Turning(self.shared.parameters) if self.config.log_turning else None
        self.precision = autocast(self.config, world)
        carried = torch.float32 if isinstance(self.precision, nullcontext) else torch.bfloat16
        self.peak = machine.peak_flops(world.device, carried)
        seconds = None if self.config.minutes is None else self.config.minutes * 60
        self.display = Display(self.config.steps, seconds, show=show and world.first)
        self.writer: metrics.Writer | None = None
        self.trackers = Trackers({}, self.display.live.say)
        self._pool, self._closed = ThreadPoolExecutor(1), False
        if not world.alike(self.facts.stream):
            raise DataError(f"{config.data} is not the same text for every process; give all of them the same files")
        world.first_does(lambda: self._claim(stored))
        self._restore(stored)
        world.first_does(self._begin)

    def _claim(self, stored: Facts | None) -> None:
        """Make the directory ours, or refuse; the first process does this."""
        path = self.run.path
        if stored is None:
            self.run.claim()
        else:
            refuse_other_text(self.run, stored, self.facts.stream)
        self.run.sessions()
        self.run.lock()
        self.run.recover()
        refuse_finished(path, self.config)

    def _begin(self) -> None:
        """Once nothing was refused: write what this session is. The first process does this."""
        path = self.run.path
        settings = flatten(self.config)
        trackers: dict[str, Log] = {str(name): open_tracker(name, path, settings) for name in self.config.track}
        self.trackers = Trackers(trackers, self.display.live.say)
        write_facts(self.run, self.facts)
        (path / DIAGNOSIS).unlink(missing_ok=True)
        metrics.cut(path / METRICS, saved(path))
        self.run.add_session(describe_session(self.config, self.world, self.shared.strategy, self.peak))
        self.writer = metrics.Writer(path)

    def _restore(self, stored: Facts | None) -> None:
        known = newest(self.run.path)
        if known is not None:
            self.state.load(known)
            self.batches = self.source.training(self.config, self.state.stage)
        if stored is not None and stored.config.val_sequences != self.config.val_sequences:
            self.state.best = None  # of other sequences, so nothing can be compared with it

    def go(self, stop: Stop) -> None:
        config, state, display = self.config, self.state, self.display
        began = time.monotonic()
        with display.live:
            display.live.say(self._greeting())
            ahead = self._fetch(state.step)
            leave = False
            while not leave:
                arrived = time.perf_counter()
                batches = ahead.result()
                waited = time.perf_counter() - arrived
                ahead = self._fetch(state.step + 1)
                late = config.minutes is not None and time.monotonic() - began >= config.minutes * 60
                line, leave = self._step(batches, lambda late=late: stop.asked or late)  # type: ignore[misc]
                took = time.perf_counter() - arrived
                state.step += 1
                if self._mastered(line):
                    ahead = self._fetch(state.step)
                state.seconds += took
                leave = leave or state.step == config.steps
                line.update(self._costs(took, waited))
                display.step(line)
                if leave or state.step % config.save_every == 0:
                    self._checkpoint(line, batches, interrupted=self.world.any(stop.asked))
                else:
                    self._write(line)
            self._end(interrupted=self.world.any(stop.asked))

    def _end(self, *, interrupted: bool) -> None:
        state, path = self.state, self.run.path
        how = FINISHED if state.step == self.config.steps else INTERRUPTED if interrupted else TIME_OVER
        if self.world.first:
            self.run.end_session(how)
        self.display.live.say(f"{how} at step {state.step} after {clock(state.seconds)}; saved in {path}")
        if how != FINISHED:
            self.display.live.say(f"resume with: keysift train --resume {shlex.quote(str(path))}")

    def _step(self, batches: list[Batch], wish: Callable[[], bool]) -> tuple[dict[str, Any], bool]:
        """One step of the optimizer; also whether any process wishes to leave, asked as late as can be."""
        config, shared, state = self.config, self.shared, self.state
        lr = (config.lr or 0.0) * share(config, state.step)
        optimizer.set_lr(state.optimizer, lr)
        state.optimizer.zero_grad(set_to_none=True)
        (tokens,) = self.world.sum(sum(map(validation.targets, batches)))
        losses, right = [], []
        for number, batch in enumerate(batches):
            with shared.accumulating(last=number == len(batches) - 1):
                with self.precision:
                    found = validation.summed(shared.model, batch.to(self.world.device))
                # Strategies average over processes; the loss of a token must not depend on how many there are.
                (found.loss * (self.world.size / tokens)).backward()  # type: ignore[no-untyped-call]
            losses.append(found.loss.detach())
            right += [] if found.right is None else [found.right]
        shared.finish()
        summed, answered, leave = self.world.sum(sum(map(float, losses)), sum(map(float, right)), float(wish()))
        mean = summed / tokens
        norm = optimizer.gradient_norm(shared.parameters)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            at = state.step + 1
            self._give_up(at, f"the loss of step {at} is {mean:g} with gradient norm {norm:g}", batches)
        optimizer.clip(shared.parameters, norm, config.clip or 0.0)
        if self.turning is not None:
            self.turning.before()
        state.optimizer.step()
        turned = self.turning.after() if self.turning is not None else {}
        if state.ema:
            optimizer.average(state.ema, shared.parameters, config.ema)
        line = {
            "step": state.step + 1,
            "loss": mean,
            **_bits("bits_per_byte", mean, self.batches),
            **({"accuracy": answered / tokens} if right else {}),
            "lr": lr,
            "gradient_norm": norm,
            **turned,
        }
        return line, leave > 0

    def _mastered(self, line: dict[str, Any]) -> bool:
        """Whether this step was the last of its stage, so that the next one is harder."""
        state, stages = self.state, self.source.stages
        if stages == 1:
            return False
        line["stage"], before = state.stage, state.stage
        state.stage, state.mastery = advance(before, state.mastery, line["accuracy"], stages)
        if state.stage == before:
            return False
        self.batches = self.source.training(self.config, state.stage)
        self.display.live.say(f"step {state.step}  stage {before} of {stages - 1} is mastered")
        return True

    def _checkpoint(self, line: dict[str, Any], batches: list[Batch], *, interrupted: bool) -> None:
        """Validate, save, and only then what may fail: a sample and the heads. When interrupted, save at once."""
        state, say = self.state, self.display.live.say
        if not finite(self.shared):
            self._give_up(state.step, f"step {state.step} left non-finite weights", batches)
        if interrupted:
            say("interrupted: saving; a second signal ends it at once")
        else:
            line.update(self._validate(batches))
        self._write(line)
        model = state.plain()
        self._save(model)
        if self.world.first and not interrupted:
            tokens = self.validation.batch(0).inputs[:1]
            inspect(self.run.path, model, self.source, tokens, self.config, state.step, say)

    def _validate(self, batches: list[Batch]) -> dict[str, Any]:
        began = time.perf_counter()
        state = self.state
        with state.averaged():
            loss, accuracy = validation.validate(
                self.shared.model,
                self.validation,
                self.config.val_sequences,
                precision=self.precision,
                processes=self.world,
            )
        if not math.isfinite(loss):
            self._give_up(state.step, f"after step {state.step} the validation loss is {loss:g}", batches)
        if state.best is None or loss < state.best:
            state.best, state.best_step = loss, state.step
        bits = _bits("val_bits_per_byte", loss, self.validation)
        told = [f"{value:.3f} bits/byte" for value in bits.values()]
        told += [] if accuracy is None else [f"accuracy {accuracy:.1%}"]
        self.display.live.say(f"step {state.step}  validation {loss:.4f} ({', '.join(told)})")
        return {
            "val_loss": loss,
            **bits,
            **({} if accuracy is None else {"val_accuracy": accuracy}),
            "validation_seconds": time.perf_counter() - began,
        }

    def _save(self, model: LanguageModel) -> None:
        """The line of this step is on disk before the checkpoint that follows it: none is missing after a crash."""
        config, state = self.config, self.state
        if self.writer is not None:
            self.writer.sync()
        state.save(self.run.checkpoints, self.source.tokenizer, model)
        if self.world.first:
            self.run.link_model()
            best = state.best_step if config.keep_best else None
            checkpoint.retain(self.run.checkpoints, last=config.keep_last, every=config.keep_every, best=best)
        self.world.wait()

    def _give_up(self, step: int, what: str, batches: list[Batch]) -> NoReturn:
        """Stop before anything broken is saved, and write down where it began."""
        found = diagnose(self.shared, [batch.to(self.world.device) for batch in batches])
        known = newest(self.run.path)
        told = {
            "step": step,
            "what": what,
            "lr": (self.config.lr or 0.0) * share(self.config, step - 1),
            "sequences": self.batches.batch(step - 1).rows,
            **found,
            "last_good_checkpoint": known.name if known else None,
        }
        if self.world.first:
            write_json(self.run.path / DIAGNOSIS, told)
        where = found["first_parameter"] or found["first_output"] or found["first_gradient"]
        onward = (
            f"{known.name} is whole: resume from it with keysift train --resume {self.run.path} and a lower --lr or "
            f"--clip 1"
            if known
            else "there is no checkpoint yet: start again with a lower --lr or --clip 1"
        )
        raise TrainingError(f"{what}, first seen in {where}; {self.run.path / DIAGNOSIS} has the details; {onward}")

    def _costs(self, took: float, waited: float) -> dict[str, Any]:
        speed = self.config.batch_tokens / took
        return {
            "tokens": self.state.step * self.config.batch_tokens,
            "tokens_per_second": speed,
            "mfu": speed * self.facts.flops_per_token / (self.peak * self.world.size),
            "memory_bytes": machine.memory_bytes(self.world.device),
            "data_wait_share": waited / took,
            "seconds": self.state.seconds,
        }

    def _write(self, line: dict[str, Any]) -> None:
        if self.writer is not None:
            self.writer.write(line)
            self.trackers.log(line)
        if self.on_step is not None and self.world.first:
            self.on_step(line)

    def _fetch(self, step: int) -> Future[list[Batch]]:
        """This process's part of a step, read while the step before it is computed."""
        parts, batches = self.accumulation_steps * self.world.size, self.batches

        def read() -> list[Batch]:
            mine = range(self.world.rank, parts, self.world.size)
            # A long step is not read to its end for a session that is over.
            return [batches.batch(step, part, parts) for part in mine if not self._closed]

        return self._pool.submit(read)

    def _greeting(self) -> str:
        facts, step = self.facts, self.state.step
        return (
            f"{'resuming at step ' + str(step) if step else 'training'}: {self.config.arch} with "
            f"{facts.parameters:,} parameters on {self.config.data} in {self.run.path}, {self.world.size} "
            f"process{'es' if self.world.size > 1 else ''} ({self.shared.strategy})"
        )

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        self.shared.close()
        self.trackers.finish()
        if self.writer is not None:
            self.writer.close()


def _bits(name: str, loss: float, batches: Stream) -> dict[str, float]:
    """Bits for each byte of the text, from nats for each token; nothing where tokens are not text."""
    size = batches.bytes_per_token
    return {} if size is None else {name: loss / (math.log(2) * size)}
