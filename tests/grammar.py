"""Which bytes are JSON as Python's `json` reads it, byte by byte: the oracle for where a body stops being JSON."""

from typing import NoReturn

SPACE = b" \t\n\r"
DIGITS = b"0123456789"
HEX = b"0123456789abcdefABCDEF"
BOM = b"\xef\xbb\xbf"
WORDS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")
NUMBER_ENDS = ("zero", "integer", "fraction", "exponent")
MAX_DEPTH = 512
MAX_NUMBER_CHARS = 4096


class NotJson(ValueError):
    """No continuation is JSON (`offset` is the byte that made it so), or the document has not ended."""

    def __init__(self, offset: int, path: str) -> None:
        super().__init__(f"not JSON at byte {offset}, at {path or 'the top'}")
        self.offset = offset
        self.path = path


class Grammar:
    """Feed it bytes; it raises `NotJson` at the first one after which nothing can make a document."""

    def __init__(self) -> None:
        self.state = "start"
        self.offset = 0
        self.open: list[str | int] = []  # one entry per open bracket: the key, or the index, that is being read
        self.token = b""  # the word, number or key so far, or the hex digits of an escape
        self.is_key = False

    @property
    def path(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.open if step != "")
        return "".join(steps).removeprefix(".")

    def feed(self, chunk: bytes) -> None:
        for byte in chunk:
            getattr(self, f"_{self.state}")(byte)
            self.offset += 1

    def finish(self) -> None:
        if self.state in NUMBER_ENDS and not self.open:
            self.state = "after"
        if self.state != "after" or self.open:
            self._die()

    def _die(self) -> NoReturn:
        raise NotJson(self.offset, self.path)

    def _expect(self, byte: int, allowed: bytes, state: str) -> None:
        if byte not in allowed:
            self._die()
        self.state = state

    # Structure

    def _start(self, byte: int) -> None:
        if byte == BOM[self.offset]:
            self.state = "start" if self.offset < 2 else "value"
        elif self.offset:
            self._die()
        else:
            self._value(byte)

    def _value(self, byte: int) -> None:
        if byte in SPACE:
            self.state = "value"
        elif byte in b"{[":
            if len(self.open) == MAX_DEPTH:
                self._die()
            self.open.append("" if byte == ord("{") else 0)
            self.state = "first_key" if byte == ord("{") else "first_element"
        elif byte == ord('"'):
            self.state, self.is_key = "string", False
        else:
            self.token = bytes((byte,))
            if byte == ord("-"):
                self.state = "minus"
            elif byte in DIGITS:
                self.state = "zero" if byte == ord("0") else "integer"
            elif any(word[0] == byte for word in WORDS):
                self.state = "word"
            else:
                self._die()

    def _first_element(self, byte: int) -> None:
        if byte == ord("]"):
            self._close()
        elif byte not in SPACE:
            self._value(byte)

    def _first_key(self, byte: int) -> None:
        if byte == ord("}"):
            self._close()
        elif byte not in SPACE:
            self._key(byte)

    def _key(self, byte: int) -> None:
        if byte not in SPACE:
            self._expect(byte, b'"', "string")
            self.is_key, self.token = True, b""

    def _colon(self, byte: int) -> None:
        if byte not in SPACE:
            self._expect(byte, b":", "value")

    def _after(self, byte: int) -> None:
        if byte in SPACE:
            return
        if not self.open:
            self._die()
        in_list = isinstance(self.open[-1], int)
        if byte == (ord("]") if in_list else ord("}")):
            self._close()
        elif byte != ord(","):
            self._die()
        elif in_list:
            self.open[-1] = int(self.open[-1]) + 1
            self.state = "value"
        else:
            self.open[-1], self.state = "", "key"

    def _close(self) -> None:
        self.open.pop()
        self.state = "after"

    # Strings

    def _string(self, byte: int) -> None:
        if byte == ord('"'):
            if self.is_key:
                self.open[-1] = self.token.decode(errors="replace")
            self.state = "colon" if self.is_key else "after"
        elif byte == ord("\\"):
            self.state = "escape"
        elif byte < 0x20:
            self._die()
        elif self.is_key:
            self.token += bytes((byte,))

    def _escape(self, byte: int) -> None:
        self._expect(byte, b'"\\/bfnrtu', "hex1" if byte == ord("u") else "string")

    def _hex1(self, byte: int) -> None:
        self._expect(byte, HEX, "hex2")

    def _hex2(self, byte: int) -> None:
        self._expect(byte, HEX, "hex3")

    def _hex3(self, byte: int) -> None:
        self._expect(byte, HEX, "hex4")

    def _hex4(self, byte: int) -> None:
        self._expect(byte, HEX, "string")

    # Words and numbers

    def _word(self, byte: int) -> None:
        self.token += bytes((byte,))
        if not any(word.startswith(self.token) for word in WORDS):
            self._die()
        if self.token in WORDS:
            self.state = "after"

    def _minus(self, byte: int) -> None:
        if byte == ord("I"):
            self._word(byte)
            self.state = "word"
        else:
            self._digit(byte, "zero" if byte == ord("0") else "integer")

    def _digit(self, byte: int, state: str, allowed: bytes = DIGITS) -> None:
        self._expect(byte, allowed, state)
        self.token += bytes((byte,))
        if len(self.token) > MAX_NUMBER_CHARS:
            self._die()

    def _zero(self, byte: int) -> None:
        self._number(byte, {b".": "point", b"eE": "e"})

    def _integer(self, byte: int) -> None:
        self._number(byte, {DIGITS: "integer", b".": "point", b"eE": "e"})

    def _point(self, byte: int) -> None:
        self._digit(byte, "fraction")

    def _fraction(self, byte: int) -> None:
        self._number(byte, {DIGITS: "fraction", b"eE": "e"})

    def _e(self, byte: int) -> None:
        self._digit(byte, "sign" if byte in b"+-" else "exponent", DIGITS + b"+-")

    def _sign(self, byte: int) -> None:
        self._digit(byte, "exponent")

    def _exponent(self, byte: int) -> None:
        self._number(byte, {DIGITS: "exponent"})

    def _number(self, byte: int, goes_on: dict[bytes, str]) -> None:
        """The number goes on with this byte, or ended before it."""
        for allowed, state in goes_on.items():
            if byte in allowed:
                self._digit(byte, state, allowed)
                return
        self.state = "after"
        self._after(byte)


def check(body: bytes) -> None:
    """Raises `NotJson` unless the body is one JSON document."""
    grammar = Grammar()
    grammar.feed(body)
    grammar.finish()
