"""`GymClient.discover`: the agents as NeMo Gym's head server lists them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import turnloom
from one_row import ANSWER, ROW, SAMPLING, closed_port
from turnloom._client import _discovery
from turnloom.testing import FakeAgent


@contextmanager
def head_server(answer, *, status: int = 200, host: str = "127.0.0.1") -> Iterator[str]:
    """A head server with this answer, bytes as they are, anything else as JSON; gives its URL."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/server_instances"
            self.send_response(status if found else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def server(name: str, url: str | None, kind: str = "responses_api_agents") -> dict[str, object]:
    """What NeMo Gym's head server says of one server."""
    return {
        "config_path": name,
        "dir_path": f"/gym/{kind}/simple_agent",
        "entrypoint": "app.py",
        "host": "127.0.0.1",
        "name": "simple_agent",
        "pid": 7080,
        "port": 23475,
        "process_name": name,
        "server_type": kind,
        "start_time": 1795994422.7,
        "status": None,
        "uptime_seconds": None,
        "url": url,
    }


OTHERS = [
    server("math_resources", "http://127.0.0.1:1", "resources_servers"),
    server("policy_model", "http://127.0.0.1:2", "responses_api_models"),
]


def test_the_agents_are_found_and_nothing_else():
    listed = [*OTHERS, server("math", "http://127.0.0.1:3"), server("code", "http://10.0.0.5:4")]
    with head_server(listed) as url:
        found = turnloom.GymClient.discover(url)
        assert turnloom.GymClient.discover(url + "/") == found
    assert found == {"math": "http://127.0.0.1:3", "code": "http://10.0.0.5:4"}
    assert list(found) == ["math", "code"]  # the first serves the rows that name none


def test_an_agent_that_is_listed_several_times_has_several_servers():
    urls = ["http://10.0.0.5:4", "http://10.0.0.6:4", "http://10.0.0.5:4"]
    with head_server([server("math", url) for url in urls]) as url:
        found = turnloom.GymClient.discover(url)
    assert found == {"math": urls[:2]}
    turnloom.GymClient(found)


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("http://0.0.0.0:8001", "http://HEAD:8001"),
        ("http://[::]:8001", "http://HEAD:8001"),
        ("https://0.0.0.0", "https://HEAD"),
        ("http://0.0.0.0:8001/agents/math", "http://HEAD:8001/agents/math"),
        ("http://gym-3:8001", "http://gym-3:8001"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "me:secret@127.0.0.1"])
def test_an_agent_that_listens_everywhere_is_where_its_head_server_is(listed, found, host):
    with head_server([server("math", listed)]) as url:
        agents = turnloom.GymClient.discover(url.replace("127.0.0.1", host))
    assert agents == {"math": found.replace("HEAD", host.rpartition("@")[2])}


def test_of_a_head_server_at_an_ipv6_address_too():
    name, url = _discovery._agent(server("math", "http://0.0.0.0:8001"), "http://x", head_host="fd00::5")
    assert (name, url) == ("math", "http://[fd00::5]:8001")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
@pytest.mark.parametrize(
    ("head", "warned"), [("10.0.0.5", 1), ("gym", 1), ("127.0.0.1", 0), ("localhost", 0), ("::1", 0)]
)
def test_an_agent_that_only_its_own_machine_can_reach_is_warned_of(host, head, warned, caplog):
    listed = f"http://{host}:8001"
    assert _discovery._agent(server("math", listed), "http://x", head_host=head) == ("math", listed)
    told = [record.getMessage() for record in caplog.records]
    assert sum(f"'math' listens at {listed}" in line and "use_absolute_ip" in line for line in told) == warned


async def test_what_is_found_can_be_sent_to():
    with FakeAgent(ANSWER) as agent, head_server([server("math", agent.url)]) as url:
        async with turnloom.GymClient(turnloom.GymClient.discover(url)) as gym:
            rollout = await gym.run(ROW, **SAMPLING)
    assert (rollout.outcome, rollout.agent, rollout.server) == ("ok", "math", agent.url)


# --- What is no head server, or has no agent ---


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b'{"detail":"Not Found"}', 404, 'HTTP 404 \'{"detail":"Not Found"}\''),
        (b"<html>Welcome</html>", 200, "'<html>Welcome</html>'"),
        ({"servers": []}, 200, "HTTP 200"),
        (b"", 307, "HTTP 307"),
        (b"\xff\xfe\xff", 200, "HTTP 200"),
        (b"x" * 5000, 500, "HTTP 500 'xxx"),
        (b"[" * 100_000, 200, "HTTP 200 '[[["),
        (b"[" + b" " * 2**25 + b"]", 200, "HTTP 200 '[  "),
    ],
)
def test_what_is_no_head_server_is_told_by_its_answer(answer, status, said):
    with head_server(answer, status=status) as url, pytest.raises(turnloom.ConfigError) as caught:
        turnloom.GymClient.discover(url)
    for part in (f"GET {url}/server_instances", said, "no head server of NeMo Gym", "11000"):
        assert part in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([], "no server at all"),
        (OTHERS, "1 resources_servers, 1 responses_api_models"),
        ([1, None], "no server at all"),
        ([{"server_type": [[[[[[[[[]]]]]]]]]}, {}], "1 [[[[[[[...]]]]]]], 1 None"),
        ([{"server_type": "x" * 10**6}], "1 xxx"),
    ],
)
def test_a_gym_without_an_agent_is_told_by_what_it_has(listed, said):
    with head_server(listed) as url, pytest.raises(turnloom.ConfigError) as caught:
        turnloom.GymClient.discover(url)
    assert f"GET {url}/server_instances lists no agent (responses_api_agents), but {said}" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (server("math", None), "process_name 'math' and url None"),
        ({**server("math", "http://a"), "process_name": None}, "process_name None and url 'http://a'"),
        (server("math", "10.0.0.5:8001"), "agent 'math', as GET "),
        ({**server("math", "http://a"), "process_name": ["x" * 10**6]}, "process_name ['xxx"),
    ],
)
def test_an_agent_without_a_place_is_named(entry, said):
    with head_server([server("code", "http://a"), entry]) as url, pytest.raises(turnloom.ConfigError) as caught:
        turnloom.GymClient.discover(url)
    assert said in str(caught.value)


@pytest.mark.parametrize("url", ["10.0.0.5:11000", "", None, 11000])
def test_a_head_server_is_named_by_a_url(url):
    with pytest.raises(turnloom.ConfigError, match="the head server"):
        turnloom.GymClient.discover(url)


def test_a_head_server_that_is_not_there_is_unreachable():
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(turnloom.AgentUnreachable) as caught:
        turnloom.GymClient.discover(url)
    for part in (f"GET {url}/server_instances", "ConnectError", "Is NeMo Gym running there?", "11000"):
        assert part in str(caught.value)
    assert caught.value.url == f"{url}/server_instances"


def test_a_head_server_that_hangs_is_unreachable(monkeypatch):
    monkeypatch.setattr(_discovery, "DISCOVERY_TIMEOUT_S", 0.2)
    silence = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            silence.wait(10)

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as hung:
        thread = threading.Thread(target=hung.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(turnloom.AgentUnreachable, match="ReadTimeout"):
                turnloom.GymClient.discover(f"http://127.0.0.1:{hung.server_address[1]}")
        finally:
            silence.set()
            hung.shutdown()
            thread.join()


def test_a_head_server_that_drips_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(_discovery, "DISCOVERY_DEADLINE_S", 0.1)
    gone = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not gone.wait(0.01):
                try:
                    self.wfile.write(b"[")
                except ConnectionError:
                    gone.set()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as dripping:
        thread = threading.Thread(target=dripping.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with pytest.raises(turnloom.ConfigError, match="no head server"):
                turnloom.GymClient.discover(f"http://127.0.0.1:{dripping.server_address[1]}")
        finally:
            dripping.shutdown()
            thread.join()
    assert gone.wait(10)


def test_proxies_of_the_environment_are_left_alone(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    with head_server([server("math", "http://a")]) as url:
        assert turnloom.GymClient.discover(url) == {"math": "http://a"}
