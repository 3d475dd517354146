"""Compares logprobs with `numpy.float32(float(text))`, bit for bit, on decimals that are hard to round.

    python benches/decimals.py [--count 10_000_000] [--seed 0]

Each text goes through the whole parser, many to a body, with several separators and in pieces of several sizes, so that
the short ways of reading a number are taken as well as the exact one.
"""

import argparse
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal

import numpy as np

import turnloom

BODY = 20_000
"""Texts of one body."""
SEPARATORS = (",", ", ", " , ", ",\n", " ,\r\n\t")
PIECES = (1 << 30, 65_536, 1_009, 29)
SENTINEL = -9999.0
_PREFIX = '{"reward":1,"response":{"output":[{"prompt_token_ids":[1],"generation_token_ids":['
_FLOAT_MAX_BITS = 0x7F7F_FFFF


class Mismatch(AssertionError):
    """A text that was not read as `numpy.float32(float(text))`."""


# Texts, family by family


def as_float(bits: int) -> float:
    """The float32 of these bits, as a double."""
    return float(struct.unpack("f", struct.pack("I", bits))[0])


def as_double(bits: int) -> float:
    return float(struct.unpack("d", struct.pack("Q", bits))[0])


def exact(significand: int, exponent: int) -> str:
    """All digits of significand × 2**exponent."""
    if exponent >= 0:
        return str(significand << exponent)
    digits = str(significand * 5**-exponent)
    if len(digits) + exponent > 0 and len(digits) < 60:
        return f"{digits[:exponent]}.{digits[exponent:]}"
    return f"{digits[0]}.{digits[1:] or 0}e{exponent + len(digits) - 1}"


def between_doubles(double: float) -> str:
    """All digits of the middle between a positive double and the next."""
    fraction, exponent = np.frexp(double)
    shift = max(int(exponent) - 53, -1074)
    significand = int(np.ldexp(fraction, int(exponent) - shift)) if shift > -1074 else round(double / 2**-1074)
    return exact(2 * significand + 1, shift - 1)


def nudged(text: str, rng: random.Random) -> str:
    """The text as it is, cut to fewer digits, with its last digit changed, or with more behind it; or all without e."""
    mantissa, _, exponent = text.partition("e")
    how = rng.randrange(5)
    if "." not in mantissa or how == 0:
        return text
    if how == 1:
        mantissa += "0" * rng.randrange(1, 20) + rng.choice("01")
    elif how == 2:
        mantissa = mantissa[: max(mantissa.index(".") + 2, rng.randrange(13, 24))]
    else:
        last = int(mantissa[-1]) + rng.choice((-1, 1))
        mantissa = mantissa[:-1] + str(min(9, max(0, last)))
    text = f"{mantissa}e{exponent}" if exponent else mantissa
    return format(Decimal(text), "f") if abs(int(exponent or 0)) < 30 and rng.random() < 0.6 else text


def as_servers_send(rng: random.Random) -> str:
    """A float32 as Python prints it as a double."""
    return repr(-as_float(rng.randrange(0x2F00_0000, 0x41A0_0000)))


def digits(rng: random.Random) -> str:
    """Up to 45 digits with a point somewhere, and now and then an exponent."""
    whole = str(rng.getrandbits(rng.choice((1, 3, 7, 30, 64, 70))))
    fraction = f".{rng.getrandbits(rng.randrange(1, 120))}" if rng.random() < 0.9 else ""
    exponent = f"{rng.choice('eE')}{rng.choice(('', '-', '+'))}{rng.randrange(50)}" if rng.random() < 0.3 else ""
    return rng.choice(("", "-")) + whole + fraction + exponent


def between_floats(rng: random.Random) -> str:
    """The middle between two neighbouring float32, and next to it."""
    bits = rng.randrange(_FLOAT_MAX_BITS) if rng.random() < 0.3 else rng.randrange(0x3000_0000, 0x4180_0000)
    middle = (as_float(bits) + as_float(bits + 1)) / 2
    numerator, denominator = middle.as_integer_ratio()
    return rng.choice(("", "-")) + nudged(exact(numerator, 1 - denominator.bit_length()), rng)


def between_two_doubles(rng: random.Random) -> str:
    """The middle between two neighbouring doubles, some of them beside the middle between two float32."""
    if rng.random() < 0.5:
        bits = rng.randrange(0x3000_0000, 0x4180_0000)
        middle = (as_float(bits) + as_float(bits + 1)) / 2
        double = float(np.nextafter(middle, 0.0)) if rng.random() < 0.5 else middle
    else:
        double = as_double(rng.randrange(0x3E00 << 48, 0x4040 << 48))
    return rng.choice(("", "-")) + nudged(between_doubles(double), rng)


def at_any_double(rng: random.Random) -> str:
    """Any double, or the middle between it and the next, in up to 770 digits."""
    double = as_double(rng.randrange(0x7FEF << 48))
    return nudged(between_doubles(double), rng) if rng.random() < 0.1 else f"{double:.{rng.randrange(12, 25)}e}"


def subnormal(rng: random.Random) -> str:
    """A float32 below the normal ones, or the middle between two."""
    bits = rng.randrange(0x80_0010)
    value = rng.choice((as_float(bits), (as_float(bits) + as_float(bits + 1)) / 2))
    return rng.choice(("", "-")) + rng.choice((repr(value), f"{value:.{rng.randrange(5, 30)}e}"))


def extreme_exponent(rng: random.Random) -> str:
    """An exponent that no number needs, perhaps undone by zeros before or behind the point."""
    zeros = "0" * rng.choice((0, 1, 5, 40, 320))
    exponent = rng.choice((rng.randrange(-420, 420), rng.randrange(-50, 50), rng.randrange(-99999, 99999)))
    sign, leading = rng.choice(("", "-")), "0" * rng.choice((0, 0, 2, 30))
    mantissa = rng.choice((f"{rng.randrange(1, 10**6)}{zeros}", f"0.{zeros}{rng.randrange(1, 10**18)}"))
    return f"{sign}{mantissa}{rng.choice('eE')}{'-' if exponent < 0 else rng.choice(('', '+'))}{leading}{abs(exponent)}"


def zero(rng: random.Random) -> str:
    point = "." + "0" * rng.randrange(1, 30) if rng.random() < 0.7 else ""
    exponent = f"{rng.choice('eE')}{rng.choice(('', '-', '+'))}{rng.randrange(9999)}" if rng.random() < 0.5 else ""
    return rng.choice(("", "-")) + "0" + point + exponent


def integer(rng: random.Random) -> str:
    return rng.choice(("", "-")) + str(rng.getrandbits(rng.randrange(1, 140))) + rng.choice(("", "", "E5", "e0", "E-3"))


def near_the_sentinel(rng: random.Random) -> str:
    """vLLM's -9999, and the doubles and decimals around it."""
    double = as_double(struct.unpack("Q", struct.pack("d", 9999.0))[0] + rng.randrange(-3, 4))
    text = rng.choice((repr(double), between_doubles(double), "9998." + "9" * rng.randrange(5, 30), "9999"))
    if "." in text and rng.random() < 0.5:
        text = nudged(text, rng)
    scaled = "." in text and rng.random() < 0.2
    return f"-{text[0]}.{text[1:4]}{text[5:]}e3" if scaled else f"-{text}"


def near_the_largest(rng: random.Random) -> str:
    """The largest float32, and the bound from which a double rounds to infinity."""
    bound = (2**25 - 1) * 2**103
    double = rng.choice((bound, as_float(_FLOAT_MAX_BITS)))
    for _ in range(rng.randrange(3)):
        double = float(np.nextafter(double, rng.choice((0.0, np.inf))))
    text = rng.choice((f"{double:.{rng.randrange(7, 40)}e}", str(int(double) + rng.randrange(-5, 6)), repr(double)))
    return rng.choice(("", "-")) + text


def short(rng: random.Random) -> str:
    """Few digits, as a rounding server sends them."""
    value = rng.choice((rng.uniform(-30, 1), rng.gauss(0, 1) * 10.0 ** rng.randrange(-12, 6)))
    text = f"{value:.{rng.randrange(1, 18)}{rng.choice('gfe')}}"
    return text.replace("e-0", "e-") if rng.random() < 0.5 else text


FAMILIES: dict[Callable[[random.Random], str], int] = {
    as_servers_send: 20,
    digits: 20,
    between_floats: 12,
    between_two_doubles: 12,
    short: 10,
    at_any_double: 8,
    subnormal: 5,
    extreme_exponent: 5,
    integer: 3,
    near_the_sentinel: 2,
    near_the_largest: 2,
    zero: 1,
}
"""The families and their shares in percent."""


def texts(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """(family, text), in random order."""
    for family in rng.choices(list(FAMILIES), list(FAMILIES.values()), k=count):
        yield family.__name__, family(rng)


# Comparing


def parse(log_probs: list[str], separator: str, piece: int) -> turnloom.Rollout:
    ids = ",".join("1" for _ in log_probs)
    body = f'{_PREFIX}{ids}],"generation_log_probs":[{separator.join(log_probs)}]}}]}}}}'.encode()
    parser = turnloom.RunParser()
    for start in range(0, len(body), piece):
        parser.feed(body[start : start + piece])
    return parser.finish()


def require_equal(log_probs: list[str], separator: str, piece: int) -> None:
    """All the texts, read as one list of logprobs. Raises `Mismatch`."""
    log_probs = ["-1", *log_probs]  # something is trained, whatever the others are
    (row,) = parse(log_probs, separator, piece).rows
    doubles = np.fromiter(map(float, log_probs), np.float64, len(log_probs))
    with np.errstate(over="ignore", under="ignore"):
        singles = doubles.astype(np.float32)
    usable = (doubles > SENTINEL) & np.isfinite(singles)
    expected = np.where(usable, singles, np.float32(0))
    found = row.old_log_probs[1:]
    wrong = (found.view(np.uint32) != expected.view(np.uint32)) | (row.completion_mask[1:] != usable)
    if wrong.any():
        at = int(wrong.argmax())
        raise Mismatch(f"{log_probs[at]} is {found[at]!r}, not {expected[at]!r} (usable: {usable[at]})")


def compare(seed: int, count: int) -> Counter[str]:
    """Compare so many texts; how many were of each family. Raises `Mismatch` at the first that differs."""
    rng = random.Random(seed)
    compared: Counter[str] = Counter()
    while (done := compared.total()) < count:
        families, log_probs = zip(*texts(rng, min(BODY, count - done)), strict=True)
        require_equal(list(log_probs), rng.choice(SEPARATORS), rng.choice(PIECES))
        compared.update(families)
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    for family, compared in compare(arguments.seed, arguments.count).most_common():
        print(f"{family:22}{compared:12,}")
    print(f"{'all equal, bit for bit':22}{arguments.count:12,} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
