"""A real NeMo Gym for the tests: started, asked, and broken."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import turnloom

WEATHER = "example_single_tool_call_simple_agent"
STEPS = "example_multi_step_simple_agent"
COUNTER = "example_session_state_mgmt_simple_agent"
TRIVIA = "example_multi_turn_gymnasium_agent"
REWARDS = "example_tool_call_multireward_simple_agent"
AGENTS = (WEATHER, STEPS, COUNTER, TRIVIA, REWARDS)
WEATHER_TOOLS = "example_single_tool_call"
MODEL = "policy_model"

WEATHER_TOO = "second_weather_agent"
WITHOUT_IDS = "agent_without_ids"
_MORE_SERVERS = f"""\
{WEATHER_TOO}:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: {WEATHER_TOOLS}}}
      model_server: {{type: responses_api_models, name: {MODEL}}}
policy_model_without_ids:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: ${{policy_base_url}}
      api_key: ${{policy_api_key}}
      model: ${{policy_model_name}}
      return_token_id_information: false
      uses_reasoning_parser: false
{WITHOUT_IDS}:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: {WEATHER_TOOLS}}}
      model_server: {{type: responses_api_models, name: policy_model_without_ids}}
"""


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 60.0) -> None:
    """Look often; fail when it has not come true in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {condition}"
        time.sleep(0.05)


class Gym:
    """One NeMo Gym, over a policy server that the rows steer.

    Attributes:
        agents: the URLs of the five agents, by name.
        more_agents: the URLs of one that is as `WEATHER`, and of one whose model server has
            `return_token_id_information` off.
        head: the URL of the head server.
    """

    def __init__(self, launcher: Path, folder: Path) -> None:
        more = folder / "more.yaml"
        more.write_text(_MORE_SERVERS)
        environments = [environment_of(agent) for agent in AGENTS]
        log = folder / "launcher.log"
        with log.open("w") as errors:
            self._launcher = subprocess.Popen(
                [sys.executable, launcher, *(word for name in (*environments, more) for word in ("--env", name))],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self._launcher.stdout is not None
        line = self._launcher.stdout.readline()
        if not line:
            self._launcher.communicate()
            raise RuntimeError(f"NeMo Gym did not start:\n{log.read_text()}")
        state = json.loads(line)
        self.agents: dict[str, str] = {name: state["agents"][name] for name in AGENTS}
        self.more_agents: dict[str, str] = {name: state["agents"][name] for name in (WEATHER_TOO, WITHOUT_IDS)}
        self.head: str = state["head"]
        self._servers: dict[str, dict[str, Any]] = state["servers"]
        self._policy: str = state["stub"]
        self._data = Path(state["data"])
        self._supervisor = _parent_of(self._servers[MODEL]["pid"])
        self._log = (folder / "restarted.log").open("w")
        self._restarted: list[subprocess.Popen[bytes]] = []
        self.is_whole = True

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.wake_supervisor()
        self._launcher.terminate()
        with self._launcher:
            pass
        for process in self._restarted:
            process.wait()
        self._log.close()

    # Rows, and what the policy server saw of them.

    def rows(self, agent: str) -> list[dict[str, Any]]:
        """The rows that come with an agent's environment."""
        lines = (self._data / environment_of(agent) / "data" / "example.jsonl").read_text().splitlines()
        return [{**json.loads(line), "agent_ref": {"type": "responses_api_agents", "name": agent}} for line in lines]

    def row(self, agent: str, directive: str) -> dict[str, Any]:
        """The first of them, with a word to the policy server."""
        made = self.rows(agent)[0]
        user = [message for message in made["responses_create_params"]["input"] if message["role"] == "user"][-1]
        user["content"] += f" [[stub {directive}]]"
        return made

    def model_calls(self) -> int:
        """How often the policy server was asked."""
        with urllib.request.urlopen(f"{self._policy}/stats") as answer:
            return int(json.load(answer)["chat"])

    # Breaking it.

    def kill(self, server: str) -> Callable[[], None]:
        """Kill a server's process, which NeMo Gym does not see; the answer starts it again, with the same port.

        NeMo Gym's supervisor would shut down all the other servers, within a minute. It is put to sleep, as if each
        server were in a container of its own.
        """
        self.is_whole = False
        os.kill(self._supervisor, signal.SIGSTOP)
        process = self._servers[server]["pid"]
        folder = os.readlink(f"/proc/{process}/cwd")
        environment = _environment_of(process)
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not self.answers(server))

        def start_again() -> None:
            started = subprocess.Popen(
                ["python", "app.py"],
                cwd=folder,
                env=environment,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the launcher ends whole sessions, and this one is not to be the tests'
            )
            self._restarted.append(started)
            self._servers[server]["pid"] = started.pid

        return start_again

    def answers(self, server: str) -> bool:
        """Whether a server takes requests."""
        try:
            urllib.request.urlopen(self._servers[server]["url"], timeout=5).close()
        except OSError:
            return False
        return True

    def wake_supervisor(self) -> None:
        """NeMo Gym looks after its servers again; having lost one, it shuts down."""
        os.kill(self._supervisor, signal.SIGCONT)

    @contextmanager
    def silent_policy(self) -> Iterator[None]:
        """The policy server takes connections and answers nothing while the block runs."""
        process = _child_of(self._launcher.pid, named="stub_vllm.py")
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)


class Gyms:
    """At most one NeMo Gym at a time, started when a test needs one."""

    def __init__(self, launcher: Path, make_folder: Callable[[], Path]) -> None:
        self._launcher = launcher
        self._make_folder = make_folder
        self._gym: Gym | None = None

    def whole(self) -> Gym:
        """One that no test has broken."""
        if self._gym is not None and not self._gym.is_whole:
            self.close()
        return self.running()

    def running(self) -> Gym:
        """One whose servers all run; some may have been killed and started again."""
        if self._gym is not None and not all(map(self._gym.answers, self._gym._servers)):
            self.close()
        if self._gym is None:
            self._gym = Gym(self._launcher, self._make_folder())
        return self._gym

    def close(self) -> None:
        if self._gym is not None:
            self._gym.close()
        self._gym = None


async def run(
    agents: dict[str, str], row: dict[str, Any], *, max_tokens: int = 100_000, run_timeout: float = 120, **settings: Any
) -> turnloom.Rollout:
    """One row through a client of its own."""
    async with turnloom.GymClient(agents, run_timeout=run_timeout, **settings) as client:
        return await client.run(row, max_tokens=max_tokens, temperature=1.0, top_p=1.0)


def environment_of(agent: str) -> str:
    return agent.removesuffix("_agent").removesuffix("_simple")


def _environment_of(process: int) -> dict[str, str]:
    pairs = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _child_of(parent: int, *, named: str) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (child,) = [child for child in children if named in Path(f"/proc/{child}/cmdline").read_text()]
    return int(child)
