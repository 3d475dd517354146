"""The log of the worker's process, which nobody else sets up."""

import logging
import multiprocessing
import sys

import pytest

from turnloom.integrations.nemo_gym._process import log_to_stderr


def _speak(configure: bool) -> None:
    if configure:
        logging.basicConfig(format="mine %(levelname)s %(message)s", stream=sys.stderr)
    log_to_stderr()
    logging.getLogger("turnloom").info("a line")
    logging.getLogger("turnloom").warning("a warning")


@pytest.mark.parametrize(
    ("configure", "lines"),
    [(False, ["turnloom INFO: a line", "turnloom WARNING: a warning"]), (True, ["mine WARNING a warning"])],
)
def test_the_workers_process_shows_its_log_unless_logging_is_set_up(
    configure: bool, lines: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_speak, args=(configure,))
    process.start()
    process.join()
    shown = capfd.readouterr().err.splitlines()
    assert [line.split(maxsplit=2)[2] if not configure else line for line in shown] == lines
    assert not logging.getLogger("turnloom").handlers, "this process is not the worker's"
