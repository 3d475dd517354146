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
@pytest.mark.parametrize("on_failure", ["drop", "retry"])
def test_every_rollout_is_accounted_for_once_whatever_goes_wrong(
    monkeypatch: pytest.MonkeyPatch, on_failure: str
) -> None:
    monkeypatch.setattr(soak_worker, "SoakWorker", ForkedWorker)
    plan = soak.Plan(rollouts=240, minutes=0.05, in_flight=48, share=0.5, outages_s=(1.0,), on_failure=on_failure)
    report = soak.soak(plan, every_s=1.0)
    assert report.mismatches() == []
    assert (report.told.gave.total() > plan.rollouts) == (on_failure == "retry")
    assert len(report.told.gave) > 0.9 * len(FAULTS)
    assert set(report.counted) == {fault.outcome for fault in FAULTS.values()} | {"cancelled"}
    assert max(moment.descriptors for moment in report.moments) < plan.in_flight + 40


def test_what_is_not_accounted_for_is_told() -> None:
    plan = soak.Plan(rollouts=8, minutes=1.0, in_flight=2, group_size=4)
    told = soak.Told(Counter(none=5, forks=2, nan_reward=1), Counter({0: 4, 1: 4}), held=2)
    counted = Counter(ok=7, no_reward=1, cancelled=2)
    report = soak.Report(plan, told, sent=10, counted=counted, samples=11, groups={0, 1}, moments=[])
    assert report.mismatches() == []
    wrong = {
        "rollouts that came, and that were sent: 10 and 9": {"sent": 9},
        "rollouts that were sent, and that have ended: 10 and 11": {"counted": counted + Counter(ok=1)},
        "outcomes": {"counted": counted + Counter(no_reward=1) - Counter(ok=1)},
        "requests that had come before: 0 and 1": {"told": dataclasses.replace(told, repeated=1)},
        "members of groups": {"told": dataclasses.replace(told, members=Counter({0: 5, 1: 3}))},
        "slots, and rollouts held: 2 and 3": {"told": dataclasses.replace(told, held=3)},
        "rows of the answers, and samples: 11 and 10": {"samples": 10},
        "groups numbered": {"groups": {0, 2}},
    }
    for what, changes in wrong.items():
        assert any(what in mismatch for mismatch in dataclasses.replace(report, **changes).mismatches()), what
