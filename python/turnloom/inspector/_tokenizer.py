"""What token ids say: any tokenizer as text, and as one piece of text per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from turnloom._exceptions import ConfigError

NO_CHARACTER: Final = "\ufffd"
"""What stands for bytes that are no text."""
_MAX_TOKENS_OF_A_CHARACTER: Final = 4
"""A character has up to four bytes in UTF-8, and a token at least one."""


def load_tokenizer(name_or_path: str) -> Any:
    """A tokenizer by its name on the Hugging Face hub, or from a `tokenizer.json`, or the folder that has one.

    Raises:
        ConfigError: there is none, or it cannot be read; a path needs no network, a name does unless it is cached.
        ModuleNotFoundError: the package `tokenizers` is missing; the extra `cli` has it.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "decoding needs the package tokenizers: pip install 'turnloom[cli]'", name=error.name
        ) from error
    path = Path(name_or_path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.exists() and not file.exists():
        raise ConfigError(
            f"{path} has no tokenizer.json: AutoTokenizer.from_pretrained(…).save_pretrained({str(path)!r}) writes one"
        )
    try:
        return Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(name_or_path)
    except Exception as error:  # the package raises plain Exception
        what = f"{file} is no tokenizer" if file.exists() else f"the tokenizer {name_or_path!r} could not be fetched"
        raise ConfigError(f"{what}: {error}. The path of a tokenizer.json works without a network.") from error


class TokenText:
    """A tokenizer of any kind, seen from the ids.

    Args:
        tokenizer: of `tokenizers` or `transformers`, or anything with `decode(ids, skip_special_tokens=False)`, and
            where it has special tokens, `all_special_tokens`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.special_tokens: tuple[str, ...] = tuple(sorted(_special_tokens(self._tokenizer), key=len, reverse=True))
        """Their text, longest first."""

    def text(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each id adds to that of the ids before it; one that the vocabulary lacks is `⟨id⟩`.

        Where several tokens make one character the last of them has it, and the others are empty.
        """
        pieces: list[str] = []
        before, done = 0, 0  # the group of tokens whose text came last, and the first token without text
        shown = ""
        for end, last in enumerate(ids, 1):
            if self.is_unknown(last):
                pieces += [""] * (end - 1 - done) + [f"⟨{last}⟩"]
                before, done, shown = end, end, ""
                continue
            text = self.text(ids[before:end])
            if text.endswith(NO_CHARACTER) and end - done < _MAX_TOKENS_OF_A_CHARACTER and end < len(ids):
                continue
            added = text.removeprefix(shown) if text.startswith(shown) else self.text(ids[done:end])
            pieces += [""] * (end - 1 - done) + [added]
            before, done = done, end
            shown = self.text(ids[before:end])
        return pieces

    def unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids the vocabulary surely lacks. They have no text."""
        return sum(count for token_id, count in Counter(ids).items() if self.is_unknown(token_id))

    def is_unknown(self, token_id: int) -> bool:
        """Whether the vocabulary surely lacks the id."""
        id_to_token = getattr(self._tokenizer, "id_to_token", None)
        return id_to_token is not None and id_to_token(token_id) is None


def _special_tokens(tokenizer: Any) -> list[str]:
    if hasattr(tokenizer, "get_added_tokens_decoder"):
        return [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return list(getattr(tokenizer, "all_special_tokens", ()))
