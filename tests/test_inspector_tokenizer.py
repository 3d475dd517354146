"""The text of single tokens: whatever the tokenizer, the pieces together are the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from small_tokenizers import LINES, byte_level, metaspace
from turnloom.inspector._tokenizer import TokenText

BYTE_LEVEL, METASPACE = byte_level(), metaspace()


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, METASPACE], ids=["byte level", "metaspace"])
@pytest.mark.parametrize("text", sorted(set(LINES)))
def test_pieces_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    pieces = TokenText(tokenizer).pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_of_several_tokens_is_on_the_last_of_them() -> None:
    ids = [
        BYTE_LEVEL.token_to_id(char)
        for char in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("a😀b")[0][0]
    ]
    assert TokenText(BYTE_LEVEL).pieces(ids) == ["a", "", "", "", "😀", "b"][: len(ids)]


@given(st.lists(st.integers(0, 299), max_size=20))
def test_whatever_a_model_samples(ids: list[int]) -> None:
    pieces = TokenText(BYTE_LEVEL).pieces(ids)
    assert len(pieces) == len(ids)
    sound = BYTE_LEVEL.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in sound:
        assert "".join(pieces) == sound


def test_an_id_beyond_the_vocabulary_is_seen() -> None:
    text = TokenText(BYTE_LEVEL)
    word = BYTE_LEVEL.encode("cat").ids
    assert text.pieces([*word, 70_000, *word])[len(word)] == "⟨70000⟩"
    assert "".join(text.pieces([70_000, 70_001])) == "⟨70000⟩⟨70001⟩"


def test_special_tokens_are_kept_and_known() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    text = TokenText(tokenizer)
    assert text.special_tokens == ("<|im_start|>", "<|im_end|>")
    assert text.text(tokenizer.encode("<|im_start|>cat<think><|im_end|>").ids) == "<|im_start|>cat<think><|im_end|>"


def test_a_tokenizer_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<|im_end|>")
    ids = fast("the cat<|im_end|>")["input_ids"]
    assert "".join(TokenText(fast).pieces(ids)) == "the cat<|im_end|>"
