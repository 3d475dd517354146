"""The faults that turnloom offers for tests: what each does, what becomes of it, and how they are mixed."""

from __future__ import annotations

import asyncio
import doctest
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest

import turnloom
from turnloom.testing import FAULTS, FakeAgent, Mix, faults, gym_answer

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]

ROW = {"id": 7, "responses_create_params": {"input": "2 + 2?"}}
SAMPLING = {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0}
RUN_TIMEOUT_S = 0.5  # beyond what `delay` and `drip` keep the client waiting


def test_their_examples_run():
    failed, tried = doctest.testmod(faults)
    assert (failed, tried > 3) == (0, True)


@pytest.mark.parametrize("name", FAULTS)
async def test_each_gives_the_outcome_of_the_table_and_is_sent_once(name):
    async with FakeAgent(FAULTS[name].behaviour) as agent:
        url = agent.url.replace("127.0.0.1", "localhost")  # where a cookie would be kept
        run_timeout = None if name == "huge_body" else RUN_TIMEOUT_S
        async with turnloom.GymClient({"math": url}, run_timeout=run_timeout) as gym:
            for _ in range(2):  # after it the agent serves on
                rollout = await gym.run(ROW, **SAMPLING)
                assert rollout.outcome == FAULTS[name].outcome, rollout.reason
        await agent.until(lambda agent: agent.open_connections == 0)
        assert len(agent.calls) == 2
        assert not any("cookie" in call.headers for call in agent.calls)


def test_all_outcomes_of_an_agent_that_is_there_are_given_by_some():
    assert {fault.outcome for fault in FAULTS.values()} == set(turnloom.OUTCOMES) - {"unreachable", "cancelled"}


@pytest.mark.parametrize(
    ("name", "rows", "drift"),
    [
        ("delay", 1, {"clean": 1}),
        ("drip", 1, {"clean": 1}),
        ("cookies", 1, {"clean": 1}),
        ("drift", 1, {"clean": 1, "realign": 1}),
        ("forks", 3, {"clean": 1, "fork": 2}),
        ("huge_body", 1, {"clean": faults.HUGE_TURNS - 1}),
    ],
)
async def test_what_is_odd_is_scored_as_what_it_is(name, rows, drift):
    async with FakeAgent(FAULTS[name].behaviour) as agent, turnloom.GymClient({"math": agent.url}) as gym:
        rollout = await gym.run(ROW, **SAMPLING)
    assert (rollout.outcome, len(rollout.rows), rollout.reward) == ("ok", rows, 1.0)
    assert {kind: getattr(rollout.drift, kind) for kind in ("clean", "realign", "fork")} == {
        "clean": 0,
        "realign": 0,
        "fork": 0,
        **drift,
    }


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("silence", httpx.ReadTimeout),
        ("silence_in_body", httpx.ReadTimeout),
        ("close_before_headers", httpx.RemoteProtocolError),
        ("reset_before_headers", httpx.ReadError),
        ("reset_after_headers", httpx.ReadError),
        ("half_body", httpx.RemoteProtocolError),
        ("length_too_long", httpx.RemoteProtocolError),
        ("bad_gzip", httpx.DecodingError),
    ],
)
async def test_another_client_meets_them_too(name, raised):
    async with FakeAgent(FAULTS[name].behaviour) as agent, httpx.AsyncClient(timeout=0.3) as http:
        with pytest.raises(raised):
            await http.post(agent.url + "/run", json=ROW)


@pytest.mark.parametrize(
    ("name", "status"), [("redirect", 307), ("client_error", 422), ("server_error", 500), ("not_json", 200)]
)
async def test_another_client_sees_the_status_and_the_body(name, status):
    async with FakeAgent(FAULTS[name].behaviour) as agent, httpx.AsyncClient() as http:
        small = await http.post(agent.url + "/run", json=ROW)
        assert (small.status_code, len(small.content) < 200) == (status, True)
        assert ("location" in small.headers) == (name == "redirect")
        if status != 200:
            agent.behaviour = FAULTS[f"{name}_of_10_mb"].behaviour
            large = await http.post(agent.url + "/run", json=ROW)
            assert (large.status_code, len(large.content)) == (status, faults.LARGE_BYTES)


# Mixes


async def what_rows_get(mix, rows):
    """The name of what each row gets, in the order of the rows."""
    told = []
    async with FakeAgent(mix) as agent, httpx.AsyncClient(base_url=agent.url) as http:
        for row in rows:
            before = mix.counts.copy()
            (await http.post("/run", json=row)).raise_for_status()
            told.extend(mix.counts - before)
    return told


QUICK = {name: FAULTS[name] for name in ("mask_sample", "nan_reward", "missing_reward", "drift")}
ROWS = [{**ROW, "id": number} for number in range(60)]


async def test_what_a_row_gets_follows_from_the_seed_and_not_from_the_order():
    given = await what_rows_get(Mix(share=0.5, seed=1, faults=QUICK), ROWS)
    assert set(given) == {"none", *QUICK}
    backwards = await what_rows_get(Mix(share=0.5, seed=1, faults=QUICK), ROWS[::-1])
    assert backwards == given[::-1]
    assert await what_rows_get(Mix(share=0.5, seed=2, faults=QUICK), ROWS) != given
    named_anew = [{**row, "_ng_rollout_id": f"new-{row['id']}"} for row in ROWS]
    assert await what_rows_get(Mix(share=0.5, seed=1, faults=QUICK), named_anew) == given


async def test_equal_rows_are_drawn_for_one_by_one():
    given = await what_rows_get(Mix(share=0.5, seed=1, faults=QUICK), [ROW] * 60)
    assert set(given) == {"none", *QUICK}
    assert await what_rows_get(Mix(share=0.5, seed=1, faults=QUICK), [ROW] * 60) == given


async def test_the_share_is_that_of_the_rows_and_every_fault_comes():
    mix = Mix(share=0.25, seed=3)
    names = Counter(mix._draw({"id": number}) for number in range(20_000))
    assert 0.74 < names.pop(None) / 20_000 < 0.76
    assert names.keys() == FAULTS.keys()
    assert max(names.values()) < 2 * min(names.values())
    assert (await what_rows_get(Mix(share=0.0), ROWS[:3])) == ["none"] * 3


async def test_the_other_rows_get_the_answer():
    mine = gym_answer(ROW, turns=[([1], [2], [-1.0])], reward=0.25)
    async with FakeAgent(Mix(mine, share=0.0)) as agent, httpx.AsyncClient() as http:
        assert (await http.post(agent.url + "/run", json=ROW)).json() == mine


async def test_many_rollouts_of_a_mix_are_what_it_says_it_gave():
    mix = Mix(share=0.9, seed=5, faults={name: fault for name, fault in FAULTS.items() if name != "huge_body"})
    async with FakeAgent(mix) as agent, turnloom.GymClient({"math": agent.url}, run_timeout=3) as gym:
        rollouts = await asyncio.gather(*(gym.run({**ROW, "id": number}, **SAMPLING) for number in range(150)))
    expected: Counter[str] = Counter()
    for name, count in mix.counts.items():
        expected["ok" if name == "none" else FAULTS[name].outcome] += count
    assert Counter(rollout.outcome for rollout in rollouts) == expected
    assert len(expected) == 9


# The fixture

USERS_TEST = """
import json
import urllib.request

from turnloom.testing import FAULTS

pytest_plugins = ["turnloom.testing.fixtures"]


def ask(agent):
    request = urllib.request.Request(
        agent.url + "/run", json.dumps({"id": 7}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_a_sound_answer(fake_agent):
    assert ask(fake_agent)["reward"] == 1.0
    assert len(fake_agent.calls) == 1


def test_a_fault(fake_agent):
    fake_agent.behaviour = FAULTS["missing_reward"].behaviour
    assert "reward" not in ask(fake_agent)
    fake_agent.behaviour = {"reward": 3}
    assert ask(fake_agent) == {"reward": 3}
    assert len(fake_agent.calls) == 2


def test_a_mistake_in_a_behaviour_of_its_own(fake_agent):
    async def mistaken(call):
        raise KeyError("mine")

    fake_agent.behaviour = mistaken
    try:
        ask(fake_agent)
    except OSError:
        pass
"""


def test_users_tests_get_an_agent_and_set_what_it_does(pytester):
    pytester.makepyfile(USERS_TEST)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_a_mistake_in_a_behaviour_of_its_own*", "*KeyError: 'mine'*"]
    )


def test_the_documentations_example_is_a_test_module_that_passes(pytester):
    section = (ROOT / "docs" / "testing.md").read_text().split("## As a pytest fixture")[1]
    pytester.makepyfile(re.search(r"```python\n(.*?)```", section, re.S)[1])
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


# Their page


def test_the_table_of_the_documentation_is_that_of_the_code():
    page = (ROOT / "docs" / "testing.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", page, re.M)
    assert told == [(name, fault.outcome, fault.what) for name, fault in FAULTS.items()]


def test_the_example_of_the_documentation_runs(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.S)[1]
    exec(compile(code, "testing.md", "exec"), {})
    assert capsys.readouterr().out.strip() == re.search(r"print\(.*\)  # (.*)", code)[1]
