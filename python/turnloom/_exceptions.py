"""Every exception that turnloom raises.

TurnloomError
├── ConfigError (ValueError)              the caller's mistake, before or beside any rollout
├── MalformedBody (ValueError)            a body that is not JSON
├── MalformedRecord (ValueError)          a record on the disk that is damaged
├── UnscorableRollout                     Rollout.raise_for_outcome(): the answer came, there is nothing to train
└── AgentError                            Rollout.raise_for_outcome(): no usable answer came
    ├── AgentHTTPError                    a status other than 200
    ├── AgentTimeout (TimeoutError)       no data for too long, or the deadline passed
    ├── AgentUnreachable (ConnectionError)    surely never delivered
    └── AgentDisconnected (ConnectionError)   perhaps delivered, then lost

All of them pickle: fields are keywords with defaults, so that the class can be called with the message alone.
"""

from __future__ import annotations


class TurnloomError(Exception):
    """The root of all exceptions of this library."""


class ConfigError(TurnloomError, ValueError):
    """What the caller asked for cannot work: an unknown agent, a row that is no row, a setting out of its range."""


class MalformedBody(TurnloomError, ValueError):
    """The body is not JSON.

    Attributes:
        offset: the first byte after which no continuation is JSON, or the length of a document that ends early;
            counted from the first byte fed, a byte order mark included.
        line: line of that byte, from 1.
        column: byte of that line, from 1.
        path: where in the document, such as `response.output[3].prompt_token_ids[17]`; empty for the document itself.
        excerpt: the last bytes up to the place, with it, as text.
    """

    def __init__(
        self, message: str, *, offset: int = 0, line: int = 1, column: int = 1, path: str = "", excerpt: str = ""
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.line = line
        self.column = column
        self.path = path
        self.excerpt = excerpt


class MalformedRecord(TurnloomError, ValueError):
    """A record on the disk is damaged.

    Attributes:
        path: the file.
        offset: where in it the record begins.
    """

    def __init__(self, message: str, *, path: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class UnscorableRollout(TurnloomError):
    """An answer that came whole and gives nothing to train.

    Attributes:
        outcome: one of `malformed`, `agent_failure`, `masked`, `no_tokens`, `no_reward`.
    """

    def __init__(self, message: str, *, outcome: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome


class AgentError(TurnloomError):
    """No usable answer came from an agent server.

    Attributes:
        agent: the agent's name.
        url: where the request went.
    """

    def __init__(self, message: str, *, agent: str = "", url: str = "") -> None:
        super().__init__(message)
        self.agent = agent
        self.url = url


class AgentHTTPError(AgentError):
    """The agent server answered with a status other than 200.

    Attributes:
        status: the HTTP status.
        body: the first 2,000 bytes of the answer, as text.
    """

    def __init__(self, message: str, *, agent: str = "", url: str = "", status: int = 0, body: str = "") -> None:
        super().__init__(message, agent=agent, url=url)
        self.status = status
        self.body = body


class AgentTimeout(AgentError, TimeoutError):
    """No data came for `run_timeout` seconds, or the `deadline` of the whole rollout passed."""


class AgentUnreachable(AgentError, ConnectionError):
    """The request surely was not delivered: refused, no such host, no route, TLS, connect timeout."""


class AgentDisconnected(AgentError, ConnectionError):
    """The request was perhaps delivered, then the connection was lost before the whole answer had come."""
