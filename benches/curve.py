"""Shows that no body costs more than its bytes, and the rows that come out of it, account for.

    python benches/curve.py [shape ...]

Each shape is a body made to cost as much as it can, in five sizes, each twice the one before. A figure that stays where
it is from left to right is linear. The figures are CPU time of this process, the least of some runs, without Python's
collector: what its rounds cost depends on all that is alive in the process.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import turnloom

KB = 1_000
DOUBLINGS = 4
TOKEN_BYTES = 20
"""What a token of a row takes: two int64 and a float32."""


@dataclass(frozen=True)
class Shape:
    """Bodies of about so many kilobytes, and how they are parsed."""

    make: Callable[[int], bytes]
    settings: dict[str, Any]
    kilobytes: int
    piece: int = 65_536


@dataclass(frozen=True)
class Cost:
    """What one body cost."""

    seconds: float
    bytes_in: int
    tokens_out: int

    @property
    def work(self) -> int:
        """Bytes in, and bytes of the rows that came out."""
        return self.bytes_in + TOKEN_BYTES * self.tokens_out


def measure(shape: Shape, factor: float = 1, runs: int = 5) -> Cost:
    """The least of some runs over a body of `factor` times the shape's size, from the first byte to the last array."""
    body = shape.make(int(shape.kilobytes * factor))
    pieces = [body[start : start + shape.piece] for start in range(0, len(body), shape.piece)]
    tokens, least = 0, float("inf")
    gc.disable()
    for _ in range(runs):
        start = time.process_time()
        tokens = _parse(pieces, shape.settings)
        least = min(least, time.process_time() - start)
    gc.enable()
    return Cost(least, len(body), tokens)


def _parse(pieces: list[bytes], settings: dict[str, Any]) -> int:
    """Tokens of the rows of the body; none if it is malformed."""
    parser = turnloom.RunParser(**settings)
    try:
        for piece in pieces:
            parser.feed(piece)
        return sum(len(row.input_ids) for row in parser.finish().rows)
    except turnloom.MalformedBody:
        return 0


# Bodies


def answer(items: Iterator[str] | list[str], after: str = "") -> bytes:
    return f'{{"reward":1.0,"response":{{"output":[{",".join(items)}]{after}}}}}'.encode()


def item(prompt: str, generation: str = "7", log_probs: str = "-0.5") -> str:
    fields = f'"prompt_token_ids":[{prompt}],"generation_token_ids":[{generation}]'
    return f'{{{fields},"generation_log_probs":[{log_probs}]}}'


def ids(first: int, count: int, separator: str = ",") -> str:
    return separator.join(map(str, range(first, first + count)))


def fill(kilobytes: int, one: Callable[[int], str]) -> list[str]:
    """As many as go into so many kilobytes, numbered from 0."""
    count = max(2, kilobytes * KB // (len(one(7)) + 1))
    return [one(number) for number in range(count)]


def fork_at_every_turn(kilobytes: int) -> bytes:
    return answer(fill(kilobytes, lambda turn: item(f"{turn},2,3", "4,5", "-1,-1")))


def diverge_late_at_every_turn(kilobytes: int) -> bytes:
    history = ids(100_000, 2_000)
    return answer(fill(kilobytes, lambda turn: item(f"{history},{turn}")))


def realign_at_every_turn(kilobytes: int) -> bytes:
    """Each prompt leaves the last response at its second token; the row stays as long as it is."""
    history = ids(100_000, 200)
    return answer(fill(kilobytes, lambda turn: item(history, f"4,{turn},{turn}", "-1,-1,-1")))


def untrained_forks(kilobytes: int) -> bytes:
    """Rows that are given up, since nothing of them is trained."""
    return answer(fill(kilobytes, lambda turn: item(f"1,2,{turn}", "4,5", "null,null")))


def the_same_call_again(kilobytes: int) -> bytes:
    history = ids(100_000, 200)
    return answer(fill(kilobytes, lambda _: item(history, "1,2,3", "-1,-2,-3")))


def empty_items(kilobytes: int) -> bytes:
    return answer(fill(kilobytes, lambda _: "{}"))


def defects(kilobytes: int) -> bytes:
    return answer(fill(kilobytes, lambda _: '{"generation_token_ids":1}'))


def repeated_fields(kilobytes: int) -> bytes:
    again = ",".join(fill(kilobytes, lambda turn: f'"prompt_token_ids":[1,2,{turn}]'))
    return answer([item("1,2,3"), f'{{{again},"generation_token_ids":[1],"generation_log_probs":[-1]}}'])


def repeated_responses(kilobytes: int) -> bytes:
    again = ",".join(fill(kilobytes, lambda turn: f'"response":{{"output":[{item(f"1,{turn}")}]}}'))
    return f'{{"reward":1,{again}}}'.encode()


def members(kilobytes: int) -> bytes:
    """Keys of the answer, keys of its response, and members of an item between two token arrays."""
    third = kilobytes // 3
    many = [",".join(fill(third, lambda member: f'"{member}":{member}')) for _ in range(3)]
    inner = f'{{"prompt_token_ids":[1],{many[0]},"generation_token_ids":[2],"generation_log_probs":[-1]}}'
    return f'{{"reward":1,{many[1]},"response":{{{many[2]},"output":[{inner}]}}}}'.encode()


def one_generation(kilobytes: int) -> bytes:
    values = fill(kilobytes // 2, lambda token: f"-0.{token:09}")
    return answer([item("1", ",".join(["151000"] * len(values)), ",".join(values))])


def routed_experts(kilobytes: int) -> bytes:
    experts = ",".join(fill(kilobytes, lambda token: f"[[{token},1],[2,3]]"))
    return answer([item("1")[:-1] + f',"routed_experts":[{experts}]}}'])


def escapes(kilobytes: int) -> bytes:
    text = r"\ud83d\ude00\ude00\n" * (kilobytes * KB // 20)
    return answer([item("1")], f',"text":"{text}"')


def other_white_space_at_every_token(kilobytes: int) -> bytes:
    """What is held was sent with other separators than the prompt."""
    separators = (",", ", ", " ,", ",\n", " , ")
    return answer(fill(kilobytes, lambda turn: item(ids(100_000, 500, separators[turn % 5]))))


def other_writing_at_every_token(kilobytes: int) -> bytes:
    """The same ids as numbers, as strings, with zeros before them."""
    writings = ("{}", '"{}"', '"token_id:{}"', '"000{}"')

    def turn(number: int) -> str:
        return item(",".join(writings[number % 4].format(token) for token in range(1000, 1400)))

    return answer(fill(kilobytes, turn))


def white_space_in_prompts(kilobytes: int) -> bytes:
    """One prompt of mostly white space, and many short ones that repeat it without."""
    first = item(f"1,{' ' * (kilobytes * KB // 2)}2,3")
    return answer([first, *fill(kilobytes // 2, lambda turn: item(f"1,2,{turn}"))])


def white_space_everywhere(kilobytes: int) -> bytes:
    space = " \n" * (kilobytes * KB // 20)
    turn = item(f"{space}1{space},{space}2{space}", f"{space}3{space}", f"{space}-1{space}")
    return answer([turn, turn])


def long_ids_once(kilobytes: int) -> bytes:
    """Ids with very many zeros before them, and many short prompts that repeat them without."""
    many = ids(0, max(3, kilobytes // 8)).split(",")
    first = item(",".join(f'"{token:>04000}"' for token in many))
    return answer([first, *fill(kilobytes // 2, lambda turn: item(f"0,1,2,{turn}"))])


def long_ids_in_every_prompt(kilobytes: int) -> bytes:
    many = ",".join(f'"token_id:{token:04000}"' for token in range(10))
    return answer(fill(kilobytes, lambda turn: item(f"{many},{turn}")))


def endless_ids(kilobytes: int) -> bytes:
    """Ids with zeros before them that fill chunks."""
    many = ",".join([f'"{"0" * (kilobytes * KB // 10)}1"'] * 10)
    return answer([item("1"), item(f"1,{many}"), item("1,7")])


def sub_agents(kilobytes: int) -> bytes:
    """A hundred sub-agents that take turns, more than there are open rows."""
    history = ids(100_000, 50)
    return answer(fill(kilobytes, lambda turn: item(f"{turn % 100},{history},{turn}")))


def sub_agents_that_begin_alike(kilobytes: int) -> bytes:
    """Sixty that go on in turn, each from the same long beginning."""
    history = ids(100_000, 500)
    return answer(fill(kilobytes, lambda turn: item(f"{history},{turn % 60},7,{turn // 60}")))


def forks_from_a_long_row(kilobytes: int) -> bytes:
    """A row of many turns, and then forks from its beginning, each a little later than the one before."""
    history, turns, size = "1", [], 0
    while size < kilobytes * KB // 2:
        turns.append(item(history))
        size += len(turns[-1])
        history += f",7,{len(turns)}"

    def fork(turn: int) -> str:
        return item(f"{','.join(history[:99].split(',')[: 1 + turn % 16])},{turn + 100_000}")

    return answer([*turns, *fill(kilobytes // 2, fork)])


def prompts_that_change_rows(kilobytes: int) -> bytes:
    """Each prompt follows one row after the other, since each repeats a little more of it."""
    stairs = [f"{ids(0, step)},{99_000 + step}" if step else "99000" for step in range(60)]
    rows = [item(stair) for stair in stairs]
    return answer([*rows, *fill(kilobytes, lambda turn: item(f"{ids(0, 60)},{turn + 100_000}"))])


def a_long_key(kilobytes: int) -> bytes:
    return answer([item("1")], f',"{"k" * (kilobytes * KB)}":1')


def a_long_number(kilobytes: int) -> bytes:
    return answer([item("1" * (kilobytes * KB))])


def deep_nesting(kilobytes: int) -> bytes:
    return answer([item("[" * (kilobytes * KB))])


def plain(kilobytes: int) -> bytes:
    """Turns that each go on from the one before, for comparison."""
    history, turns = "100000", []
    while len(history) < 40 * KB:
        turns.append(item(history, "200000,300000", "-0.5,-0.25"))
        history += f",200000,300000,{ids(100_000 + 7 * len(turns), 7)}"
    return answer(turns * max(1, kilobytes * KB // sum(map(len, turns))))


LINEAR: dict[str, Any] = {}
LOSSLESS = {"fork_threshold_tokens": 0}
BEST = {"branches": "best", "fork_threshold_tokens": 0}

SHAPES = {
    "plain": Shape(plain, LINEAR, 4_000),
    "fork_at_every_turn": Shape(fork_at_every_turn, LOSSLESS, 500),
    "diverge_late_at_every_turn": Shape(diverge_late_at_every_turn, LOSSLESS, 2_000),
    "realign_at_every_turn": Shape(realign_at_every_turn, LINEAR, 1_000),
    "untrained_forks": Shape(untrained_forks, LOSSLESS, 500),
    "the_same_call_again": Shape(the_same_call_again, LINEAR, 1_000),
    "empty_items": Shape(empty_items, LINEAR, 500),
    "defects": Shape(defects, LINEAR, 500),
    "repeated_fields": Shape(repeated_fields, LINEAR, 500),
    "repeated_responses": Shape(repeated_responses, LINEAR, 500),
    "members": Shape(members, LINEAR, 250),
    "one_generation": Shape(one_generation, LINEAR, 1_000),
    "routed_experts": Shape(routed_experts, LINEAR, 1_000),
    "escapes": Shape(escapes, LINEAR, 500),
    "byte_by_byte": Shape(fork_at_every_turn, LOSSLESS, 50, piece=1),
    "other_white_space_at_every_token": Shape(other_white_space_at_every_token, LINEAR, 1_000),
    "other_writing_at_every_token": Shape(other_writing_at_every_token, LINEAR, 1_000),
    "white_space_in_prompts": Shape(white_space_in_prompts, LOSSLESS, 1_000),
    "white_space_everywhere": Shape(white_space_everywhere, LINEAR, 2_000),
    "white_space_in_small_pieces": Shape(white_space_everywhere, LINEAR, 4_000, piece=60),
    "long_ids_once": Shape(long_ids_once, LOSSLESS, 1_000),
    "long_ids_in_every_prompt": Shape(long_ids_in_every_prompt, LOSSLESS, 1_000),
    "endless_ids": Shape(endless_ids, LINEAR, 2_000),
    "sub_agents": Shape(sub_agents, BEST, 1_000),
    "sub_agents_that_begin_alike": Shape(sub_agents_that_begin_alike, BEST, 1_000),
    "forks_from_a_long_row": Shape(forks_from_a_long_row, BEST, 1_000),
    "prompts_that_change_rows": Shape(prompts_that_change_rows, BEST, 500),
    "a_long_key": Shape(a_long_key, LINEAR, 1_000),
    "a_long_number": Shape(a_long_number, LINEAR, 1_000),
    "deep_nesting": Shape(deep_nesting, LINEAR, 1_000),
}


def print_curve(name: str) -> None:
    costs = [measure(SHAPES[name], 2**doubling) for doubling in range(DOUBLINGS + 1)]
    largest = costs[-1]
    per_byte = " ".join(f"{cost.seconds / cost.bytes_in * 1e9:9.2f}" for cost in costs)
    per_work = " ".join(f"{cost.seconds / cost.work * 1e9:9.2f}" for cost in costs)
    sizes = f"{largest.bytes_in / 1e6:7.1f} MB in {largest.tokens_out / 1e6:7.2f} M tokens out {largest.seconds:7.3f} s"
    print(f"{name:33}{per_byte} |{per_work} |{sizes}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SHAPES), help="shapes; all by default")
    print(f"{'':33}{'ns per byte in':49} |{'ns per byte in and out':49} | largest")
    for name in parser.parse_args().names:
        print_curve(name)


if __name__ == "__main__":
    main()
