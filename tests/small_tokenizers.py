"""Real tokenizers, trained on a few lines."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = ["the cat sat on the mat", "naïve 東京 über", "🙂 → x[i] = {'a': 1}", "tea, bread and milk  \n\n"] * 4
SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>"]


def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's: a character may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings = {"initial_alphabet": alphabet, "special_tokens": SPECIAL_TOKENS, "show_progress": False}
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, **settings))
    return tokenizer


def metaspace() -> Tokenizer:
    """As Llama 2's and Mistral's: the space before a word is in its token, and lost at the beginning of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    return tokenizer
