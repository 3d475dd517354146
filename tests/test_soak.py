"""The soak, short: faults of every kind through TRL's worker process, and every rollout accounted for."""

import dataclasses
import multiprocessing
from collections import Counter

import pytest

import soak
import soak_worker
from turnloom.testing import FAULTS


class ForkedWorker(soak_worker.SoakWorker):
    """Its process is forked from one that has imported everything; spawning would import it each time."""

    def start(self) -> None:
        self._mp_ctx = multiprocessing.get_context("forkserver")
        self._mp_ctx.set_forkserver_preload(["turnloom.integrations.nemo_gym._trl"])
        super().start()


@pytest.mark.train
@pytest.mark.timeout(300)
def test_every_rollout_is_accounted_for_once_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_worker, "SoakWorker", ForkedWorker)
    plan = soak.Plan(rollouts=240, minutes=0.05, in_flight=48, share=0.5)
    report = soak.soak(plan, every_s=1.0)
    assert report.mismatches() == []
    assert len(report.told.gave) > 0.9 * len(FAULTS)
    assert set(report.counted) == {fault.outcome for fault in FAULTS.values()} | {"cancelled"}
    assert max(moment.descriptors for moment in report.moments) < plan.in_flight + 40


def test_what_is_not_accounted_for_is_told() -> None:
    plan = soak.Plan(rollouts=8, minutes=1.0, in_flight=2, group_size=4)
    told = soak.Told(Counter(none=5, forks=2, nan_reward=1), Counter({0: 4, 1: 4}), held=2)
    counted = Counter(ok=7, no_reward=1, cancelled=2)
    report = soak.Report(plan, told, counted, samples=11, groups={0, 1}, moments=[])
    assert report.mismatches() == []
    wrong = {
        "rollouts sent, and counted: 10 and 11": {"counted": counted + Counter(ok=1)},
        "outcomes": {"counted": counted + Counter(no_reward=1) - Counter(ok=1)},
        "times that each row came": {"told": dataclasses.replace(told, times=Counter({0: 5, 1: 3}))},
        "rows that came": {"told": dataclasses.replace(told, times=Counter({0: 4}))},
        "samples: 11 and 10": {"samples": 10},
        "groups numbered": {"groups": {0, 2}},
    }
    for what, changes in wrong.items():
        assert any(what in mismatch for mismatch in dataclasses.replace(report, **changes).mismatches()), what
