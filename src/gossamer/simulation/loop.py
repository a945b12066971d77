"""The rounds of a run in one worker: restore, round, measure, record, save, stop."""

import torch

from gossamer.engines import RoundReport, Stacked
from gossamer.experiment import PreparedExperiment
from gossamer.measure import Measured, Measurement, Metrics, best_round
from gossamer.parts import in_user_code
from gossamer.runs.ending import Ending
from gossamer.runs.folder import BEST, FINAL, RunFolder
from gossamer.simulation.observer import Observer, RoundRecord, RunStart
from gossamer.simulation.options import Options
from gossamer.simulation.result import Diverged, Interrupted, Run
from gossamer.simulation.signals import StopSignals
from gossamer.system.threads import on_threads
from gossamer.system.words import counted


class Loop:
    """One run in one worker. The first worker also writes the run folder and calls the observers."""

    def __init__(
        self,
        prepared: PreparedExperiment,
        engine: Stacked,
        folder: RunFolder | None,
        observer: Observer,
        options: Options,
    ) -> None:
        self.prepared, self.experiment = prepared, prepared.experiment
        self.engine, self.group = engine, engine.group
        self.folder, self.observer, self.options = folder, observer, options
        self.measurement = Measurement(engine, self.experiment.evaluate, observer.wants, observer.note)
        self.history: list[Metrics] = []
        self.timings: list[Metrics] = []
        #: Rounds that are recorded, and the round of the newest checkpoint.
        self.done = self.saved = 0
        self._told: set[str] = set()

    def run(self, restores: bool) -> Run:
        """Run all rounds that are left. With `restores`, the run folder holds the rounds before them."""
        ending = self._restore() if restores else None
        if ending is None:
            self._start()
        try:
            with StopSignals(self._say_stopping) as signals, on_threads(1):
                while ending is None:
                    number, report = self._round()
                    measured = self._measure(number, report)
                    if measured is None or not self._is_finite(measured):
                        ending = self._divergence(number, report)
                        break
                    stops = self._record(measured)
                    self.done = number
                    ending, interrupted = self._stop(stops, bool(signals.received))
                    self._save_if_due(ending is not None or interrupted)
                    if interrupted and ending is None:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self.group.size == 1 and self.saved < self.done and self.engine.undo(self.done):
                self._save()
            raise Interrupted(self.saved, self.folder.path if self.folder else None) from None
        run = self._result(ending)
        if ending.kind == "diverged":
            raise Diverged(ending.reason, run)
        if signals.received and self.group.first:  # a caller that has more to do must know of the signal
            raise Interrupted(self.done, run.folder, run)
        return run

    def _restore(self) -> Ending | None:
        """Load the newest whole checkpoint and the rounds that led to it; how the run ended, if it has."""
        assert self.folder is not None
        engine, folder, note = self.engine, self.folder, self.observer.note
        done = folder.load_state(self.experiment.digest, engine.state, engine.own, engine.clients, engine.group, note)
        self.history, self.timings = folder.rounds_until(done, self.experiment.evaluate.start)
        self.done = self.saved = engine.done = done
        ending = folder.ending_at(done, self.experiment.rounds)
        if ending is not None and folder.finished:
            note(f"{folder.path}: {_already(ending)}; there is nothing left to do.")
        elif ending is None and self.group.first:
            folder.rewind(done)
        if done == 0:
            engine.undo(0)  # half a checkpoint may have been read
        engine.group.barrier()
        return ending

    def _start(self) -> None:
        """Call the observers' `start`."""
        how = f"on {counted(self.group.size, 'worker')}, {self.engine.runner.in_effect}"
        self._note_trouble()
        folder = self.folder.path if self.folder else None
        training, partition = self.prepared.training, self.prepared.partition
        self.observer.start(RunStart(self.experiment, training, partition, how, self.done, folder))

    def _round(self) -> tuple[int, RoundReport | None]:
        """Run the next round; its number, and what it did. Round 0, if it is to be measured, does nothing."""
        if self.experiment.evaluate.start and not self.history:
            return 0, None
        with in_user_code(f"round {self.done + 1}"):
            report = self.engine.round(self.done)
        self._note_trouble()
        return self.done + 1, report

    def _measure(self, number: int, report: RoundReport | None) -> Measured | None:
        """Measure a round; None if a client diverged in it and the run stops at that."""
        if report is not None and self._stops_if_diverged and bool(report.broken.any()):
            return None
        with in_user_code(f"evaluation after round {number}"):
            return self.measurement.measure(number, report, self.history)

    def _record(self, measured: Measured) -> bool:
        """Write a round to the run folder and call the observers; whether one of them asks to stop."""
        metrics, timings, clients, kept, average = measured
        if self.folder and self.group.first:
            if average is not None and best_round([*self.history, metrics]).get("round") == metrics["round"]:
                self.folder.save_model(BEST, self.engine.training.model.unflatten(average), metrics["round"])
            self.folder.record(metrics, timings, kept)
        self.history.append(metrics)
        self.timings.append(timings)
        return self.observer.round(RoundRecord(metrics, timings, clients))

    def _stop(self, stops: bool, interrupted: bool) -> tuple[Ending | None, bool]:
        """The ending of the run if it ends after this round, and whether a signal asks for that: for all workers."""
        if self.group.size > 1:
            requests = torch.tensor([stops, interrupted], dtype=torch.float32, device=self.group.device)
            stops, interrupted = (self.group.all_sum(requests) > 0).tolist()
        if self.done == self.experiment.rounds:
            return Ending("finished", self.done), interrupted
        if not stops:
            return None, interrupted
        ending = Ending("stopped", self.done, self.group.broadcast(str(self.observer) if self.group.first else ""))
        if self.folder and self.group.first:
            # Before the checkpoint: a run that is killed in between computes this round again, and stops again.
            self.folder.stop(ending)
        return ending, interrupted

    def _is_finite(self, measured: Measured) -> bool:
        average = measured.average
        return not self._stops_if_diverged or average is None or bool(average.isfinite().all())

    def _divergence(self, number: int, report: RoundReport | None) -> Ending:
        """The ending of a run whose losses, messages or averaged model are not finite any more."""
        broken = report.broken.nonzero().flatten().tolist() if report is not None else []
        where = f" at client {broken[0]}" if broken else ""  # every loss and message may be finite, and no model
        if len(broken) > 1:
            where = f" at {len(broken)} clients, the first of them client {broken[0]}"
        advice = "a smaller lr" if self.experiment.clip else "a smaller lr, or clip (for example clip=10)"
        words = f"diverged in round {number}{where}: the loss or the model is not finite any more. Try {advice}."
        return Ending("diverged", self.done, words)

    def _save_if_due(self, at_once: bool) -> None:
        """Write a checkpoint at the end of a run, and every so many rounds."""
        every = self.experiment.checkpoint_every
        if at_once or (every and self.done and self.done % every == 0):
            self._save()

    def _save(self) -> None:
        """Write a checkpoint: every worker the state of its own clients."""
        if self.folder:
            engine, digest = self.engine, self.experiment.digest
            self.folder.save_state(self.done, digest, engine.state, engine.own, engine.clients, self.group)
            self.saved = self.done

    def _result(self, ending: Ending) -> Run:
        """The result of a run that has ended; in the run folder, its ending and its final model."""
        self._note_trouble()
        if ending.kind == "diverged":
            if self.engine.undo(self.done):
                self._save()
            if self.folder and self.group.first:
                self.folder.stop(ending)
        average = self.engine.average()
        if self.folder and self.group.first and ending.kind != "diverged" and not self.folder.finished:
            self.folder.save_model(FINAL, self.engine.training.model.unflatten(average), self.done)
        kept = self.options.get("keep_vectors", True)
        return Run(
            experiment=self.experiment,
            vectors=self.engine.gather_models() if kept else average.new_empty((0, len(average))),
            partition=self.prepared.partition,
            ending=ending,
            folder=self.folder.path if self.folder else None,
            _history=self.history,
            _seconds=self.timings,
            _vector_model=self.engine.training.model,
            _average=average,
        )

    @property
    def _stops_if_diverged(self) -> bool:
        return self.options.get("on_divergence", "stop") == "stop"

    def _note_trouble(self) -> None:
        """Tell the user, once each, why steps are not taken, or messages not mixed, as planned."""
        runner = self.engine.runner
        for trouble in dict.fromkeys([*([runner.trouble] if runner.trouble else []), *self.engine.notes]):
            if trouble not in self._told:
                self._told.add(trouble)
                self.observer.note(trouble)
        self.engine.notes.clear()

    def _say_stopping(self) -> None:
        self.observer.note(f"finishing round {self.done + 1}, then stopping. Once more stops at once.")


def _already(ending: Ending) -> str:
    return "is finished already" if ending.kind == "finished" else str(ending)
