"""Instructions for each token: a slowdown is seen, however noisy the machine."""

import pytest

import instructions


@pytest.mark.timeout(600)  # it may have to build the program
def test_parsing_takes_no_more_instructions_than_it_did() -> None:
    if not instructions.is_countable():
        pytest.skip("valgrind is not installed, which counts the instructions")
    committed, counts = instructions.committed(), instructions.per_token()
    assert counts.keys() == committed.keys()
    for name, count in counts.items():
        change = count / committed[name] - 1
        told = f"{name}: {count} instructions a token, {committed[name]} when last committed ({change:+.1%})"
        assert change <= instructions.TOLERANCE, f"{told}: slower, or a new compiler"
        assert change >= -instructions.TOLERANCE, f"{told}: run benches/instructions.py --update"
