"""Events of a run: who is told, in which order, and what readers remember and decide."""

import pytest

from bertjax.devices import activity
from bertjax.devices.activity import Clock
from bertjax.record.early_stopping import EarlyStopping
from bertjax.record.events import Began, Ended, Evaluated, EventStream, Reader, Saved, Stopped


class Notes(Reader):
    """Keeps what it is told, and the activity to which the time then belonged."""

    def __init__(self, clock, name="notes"):
        self.told, self._clock, self._name = [], clock, name

    def read(self, event):
        self.told.append((event, self._clock.activity))

    def remembered(self):
        return {self._name: len(self.told)}


def test_the_time_before_an_activity_belongs_to_the_one_before_and_its_end_to_itself():
    run = EventStream(Clock())
    run.add(Notes, run.clock)
    with run.doing(activity.EVALUATING):
        pass
    (notes,) = run.readers
    assert notes.told == [
        (Began(activity.EVALUATING), activity.START_UP),
        (Ended(activity.EVALUATING), activity.EVALUATING),
    ]


def test_an_error_is_told_as_a_stop_and_no_activity_ends():
    run = EventStream(Clock())
    run.add(Notes, run.clock)
    with pytest.raises(OSError), run, run.doing(activity.SAVING):
        raise OSError
    (notes,) = run.readers
    assert [event for event, _ in notes.told] == [Began(activity.SAVING), Stopped()]


def test_a_checkpoint_stores_what_all_readers_remember():
    run = EventStream(Clock())
    for name in ("a", "b"):
        run.add(Notes, run.clock, name)
    run.emit(Saved(1))
    assert run.remembered() == {"a": 1, "b": 1}


def test_only_readers_of_all_hosts_read_on_others(monkeypatch):
    monkeypatch.setattr("bertjax.devices.hosts.is_first", lambda: False)
    run = EventStream(Clock())
    run.add(Notes, run.clock)
    add_early_stopping(run, {})
    assert [type(reader) for reader in run.readers] == [EarlyStopping]


def add_early_stopping(run, progress, higher_is_better=True):
    run.add(
        EarlyStopping,
        "eval/f1",
        higher_is_better=higher_is_better,
        patience=2,
        progress=progress,
    )


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_early_stopping_ends_a_run_also_if_it_was_resumed_in_between(higher_is_better, capsys):
    sign = 1 if higher_is_better else -1
    run = EventStream(Clock())
    add_early_stopping(run, {}, higher_is_better)
    for step, value in ((1, 0.5), (2, 0.7), (3, 0.6)):
        run.emit(Evaluated(step, {"eval/f1": sign * value}))
        assert not run.should_stop()
    stored = run.remembered()
    assert stored == {"patience": {"best": sign * 0.7, "stale": 1}}
    resumed = EventStream(Clock())
    add_early_stopping(resumed, stored, higher_is_better)
    resumed.emit(Evaluated(4, {"eval/other": 0.0}))  # says nothing
    assert not resumed.should_stop()
    resumed.emit(Evaluated(4, {"eval/f1": sign * 0.7}))  # equal is not better
    assert resumed.should_stop() and resumed.should_stop()
    assert capsys.readouterr().out.count("training ends early: the held-out F1") == 1
