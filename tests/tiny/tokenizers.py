"""Small tokenizers of every kind that real checkpoints use, trained in a blink on text embedded here.

Each function gives a fresh `PreTrainedTokenizerFast`, always the same for the same options. Common options:

- `vocab_size`: how many ids at most, special tokens included (the text may not suffice for more than about 1200);
- `extra`: more special tokens, at the end of the vocabulary;
- `named`: special tokens that processors ask for by attribute, such as `{"image_token": "<image>"}`;
- `chat_template`: a Jinja source, `CHATML` for instance;
- `add_bos`, `add_eos`: what encoding adds around a text.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tiny.texts import CORPUS

BOS, EOS, PAD, UNK = "<s>", "</s>", "<pad>", "<unk>"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CHAT_TOKENS = (IM_START, IM_END)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(
    vocab_size: int = 800,
    *,
    extra: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    add_bos: bool = False,
    add_eos: bool = False,
    split: str = GPT2_SPLIT,
    normalize: bool = False,
    eos: str = EOS,
) -> Any:
    """Byte-level BPE as in GPT-2, Llama 3 and Qwen 2: any bytes can be spelled, no unknown token.

    `split` is the pre-tokenizer's pattern, `normalize` puts NFC first; both together are Qwen 2's pipeline.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if normalize:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    late = _late(extra, named)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(late),
        min_frequency=1,
        special_tokens=[BOS, EOS, PAD, *CHAT_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(
        tokenizer,
        late=late,
        named=named,
        chat_template=chat_template,
        around=(BOS if add_bos else None, EOS if add_eos else None),
        bos_token=BOS,
        eos_token=eos,
        pad_token=PAD,
        extra_special_tokens=[*(t for t in CHAT_TOKENS if t != eos), *extra],
    )


def byte_fallback(
    vocab_size: int = 800,
    *,
    extra: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    add_bos: bool = True,
    add_eos: bool = False,
    metaspace: bool = False,
    prefix_space: bool = True,
    eos: str = EOS,
) -> Any:
    """SentencePiece BPE with byte fallback, as in Llama 2, Mistral 7B, Phi 3 and (no `prefix_space`) Gemma.

    `<unk>`, `<s>`, `</s>` come first, then `<0x00>` to `<0xFF>`. The `▁` is written by the normalizer, as in older
    files, or with `metaspace` by the pre-tokenizer, as in newer ones. Rarer characters exist as bytes only.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    late = [PAD, *CHAT_TOKENS, *_late(extra, named)]
    first = [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    learner = Tokenizer(models.BPE(unk_token=UNK))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    # Which characters make it into a limited alphabet is chosen here: the trainer draws lots among equals.
    letters = Counter("".join(CORPUS).replace(" ", "▁"))
    alphabet = sorted(letters, key=lambda c: (-letters[c], c))[:180]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(late) - 256,
        min_frequency=1,
        special_tokens=[UNK, BOS, EOS],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(CORPUS, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=lambda piece: learned["vocab"][piece])
    spelled = first + [piece for piece in pieces if piece not in set(first)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(spelled)},
            merges=[tuple(pair) for pair in learned["merges"]],
            unk_token=UNK,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if metaspace:
        scheme = "first" if prefix_space else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        replace = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix_space else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    tokenizer.add_special_tokens([UNK, BOS, EOS])
    return _wrap(
        tokenizer,
        late=late,
        named=named,
        chat_template=chat_template,
        around=(BOS if add_bos else None, EOS if add_eos else None),
        bos_token=BOS,
        eos_token=eos,
        unk_token=UNK,
        pad_token=PAD,
        extra_special_tokens=[*(t for t in CHAT_TOKENS if t != eos), *extra],
    )


def unigram(
    vocab_size: int = 700,
    *,
    extra: Sequence[str] = ("<extra_id_0>", "<extra_id_1>", "<extra_id_2>"),
    named: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    add_eos: bool = True,
) -> Any:
    """SentencePiece Unigram with Metaspace, as in T5: `<pad>`, `</s>`, `<unk>` first, and no BOS."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    late = _late(extra, named)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    words = _words(tokenizer)
    counts = _substrings(words, longest=12)
    best = sorted((p for p in counts if len(p) > 1), key=lambda p: (-counts[p] * (len(p) - 1), p))
    letters = sorted(p for p in counts if len(p) == 1)
    chosen = [*best[: vocab_size - len(late) - 3 - len(letters)], *letters]
    total = sum(counts[piece] for piece in chosen)
    scored = sorted(((p, round(math.log(counts[p] / total), 4)) for p in chosen), key=lambda x: (-x[1], x[0]))
    tokenizer.model = models.Unigram([(PAD, 0.0), (EOS, 0.0), (UNK, 0.0), *scored], unk_id=2, byte_fallback=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    return _wrap(
        tokenizer,
        late=late,
        named=named,
        chat_template=chat_template,
        around=(None, EOS if add_eos else None),
        padding_side="right",
        eos_token=EOS,
        unk_token=UNK,
        pad_token=PAD,
        extra_special_tokens=list(extra),
    )


def wordpiece(
    vocab_size: int = 900,
    *,
    extra: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    lowercase: bool = True,
) -> Any:
    """WordPiece as in BERT: `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]` first; `##` marks pieces inside a word."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    late = _late(extra, named)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    words = _words(tokenizer)
    starts, insides = _prefixes(words, longest=10), _substrings({w[1:]: n for w, n in words.items()}, longest=5)
    counts = starts + Counter({f"##{piece}": n for piece, n in insides.items()})
    best = sorted(counts, key=lambda p: (-counts[p] * len(p.removeprefix("##")), p))
    letters = sorted(p for p in counts if len(p.removeprefix("##")) == 1)
    chosen = [*special, *letters, *(p for p in best if p not in set(letters))][: vocab_size - len(late)]
    tokenizer.model = models.WordPiece(vocab={piece: i for i, piece in enumerate(chosen)}, unk_token="[UNK]")
    tokenizer.add_special_tokens(special)
    return _wrap(
        tokenizer,
        late=late,
        named=named,
        around=("[CLS]", "[SEP]"),
        padding_side="right",
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        extra_special_tokens=list(extra),
    )


def wordlevel(
    vocab_size: int = 600,
    *,
    extra: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    add_bos: bool = False,
    add_eos: bool = False,
) -> Any:
    """Whole words and no decoder at all: the library joins the words with spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    late = _late(extra, named)
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size - len(late), special_tokens=[UNK, BOS, EOS, PAD], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(
        tokenizer,
        late=late,
        named=named,
        chat_template=chat_template,
        around=(BOS if add_bos else None, EOS if add_eos else None),
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=PAD,
        extra_special_tokens=list(extra),
    )


def _words(tokenizer: Any) -> Counter[str]:
    """The words of the text as this tokenizer's normalizer and pre-tokenizer cut them."""
    cut = tokenizer.pre_tokenizer.pre_tokenize_str
    return Counter(word for line in CORPUS for word, _ in cut(tokenizer.normalizer.normalize_str(line)))


def _substrings(words: Mapping[str, int], *, longest: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, times in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + longest, len(word)) + 1):
                found[word[start:end]] += times
    return found


def _prefixes(words: Mapping[str, int], *, longest: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, times in words.items():
        for end in range(1, min(longest, len(word)) + 1):
            found[word[:end]] += times
    return found


def _late(extra: Sequence[str], named: Mapping[str, str] | None) -> list[str]:
    return list(dict.fromkeys([*extra, *(named or {}).values()]))


def _wrap(
    tokenizer: Any,
    *,
    late: Sequence[str],
    named: Mapping[str, str] | None,
    around: tuple[str | None, str | None],
    chat_template: str | None = None,
    padding_side: str = "left",
    **options: Any,
) -> Any:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer.add_special_tokens(list(late))
    first, last = around
    if first or last:
        tokenizer.post_processor = TemplateProcessing(
            single=" ".join(part for part in (first, "$A", last) if part),
            pair=" ".join(part for part in (first, "$A", last, "$B", last) if part),
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(around) if token],
        )
    if named:
        options["model_specific_special_tokens"] = dict(named)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side=padding_side,
        **options,
    )
    wrapped.chat_template = chat_template
    return wrapped
