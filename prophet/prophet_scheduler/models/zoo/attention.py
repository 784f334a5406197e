"""Layer shapes of BERT, the Transformer and a recurrent translator.

Rule of this file: shapes from the papers, each function with its source. Tests compare totals with published ones.
"""

from __future__ import annotations

from prophet_scheduler.models.zoo.layers import Layer, Shapes

BERT_TOKENS = 128
"""Tokens per sequence, for the work: the length in 90% of the steps of Devlin et al. (appendix A.2)."""
BERT_VOCABULARY = 30_522
"""Vocabulary of the released uncased models; the paper says 30,000 (section 3)."""
TRANSFORMER_TOKENS = 32
"""Tokens per sentence, source and target each, for the work: an assumption, since the paper batches by tokens."""
TRANSFORMER_VOCABULARY = 37_000
"""Shared vocabulary of both languages: "about 37000 tokens" (section 5.1)."""
PACE_VOCABULARY = 31_032
"""Vocabulary of each language. It was not published; this one gives PACE's Transformer its 91.8 million (table II)."""


def bert(depth: int, width: int) -> list[Layer]:
    """Return BERT of Devlin et al., NAACL 2019, section 3, with the pooler and without the pre-training heads."""
    shapes = Shapes()
    shapes.embedding("embeddings.word", BERT_VOCABULARY, width)
    shapes.embedding("embeddings.position", 512, width)
    shapes.embedding("embeddings.type", 2, width)
    shapes.normalisation("embeddings.norm", width)
    for number in range(depth):
        name = f"layer{number}"
        _attention(shapes, f"{name}.attention", width, BERT_TOKENS)
        _feed_forward(shapes, name, width, 4 * width, BERT_TOKENS)
    shapes.dense("pooler", width, width)
    return shapes.layers


def transformer() -> list[Layer]:
    """Return the base model of Vaswani et al., NIPS 2017, table 3: 6 + 6 layers, 512 wide.

    Both embeddings and the layer before the softmax share one matrix (section 3.4). The encoder's embedding reads it
    first, so its gradient is complete last, and is the first in forward order. The work of the softmax layer is still
    at the end of the forward pass, and is counted with the last normalisation.
    """
    width, tokens = 512, TRANSFORMER_TOKENS
    shapes = Shapes()
    shapes.embedding("embedding", TRANSFORMER_VOCABULARY, width)
    for number in range(6):
        name = f"encoder{number}"
        _attention(shapes, f"{name}.attention", width, tokens)
        _feed_forward(shapes, name, width, 2048, tokens)
    for number in range(6):
        name = f"decoder{number}"
        _attention(shapes, f"{name}.attention", width, tokens)
        _attention(shapes, f"{name}.cross", width, tokens)
        softmax = TRANSFORMER_VOCABULARY * width * tokens if number == 5 else 0
        _feed_forward(shapes, name, width, 2048, tokens, norm_macs=softmax)
    return shapes.layers


def transformer_untied() -> list[Layer]:
    """Return PACE's Transformer (INFOCOM 2020, table II): 91.8 million parameters in 164 tensors, 6 + 6 layers of 512.

    Sockeye's Transformer for MXNet has as many tensors: query, key and value of self-attention share one matrix,
    attention has no biases, encoder and decoder end in a normalisation, and no embedding is shared.
    """
    width, tokens = 512, TRANSFORMER_TOKENS
    shapes = Shapes()
    shapes.embedding("source", PACE_VOCABULARY, width)
    for number in range(6):
        name = f"encoder{number}"
        _fused_attention(shapes, f"{name}.attention", width, tokens)
        _feed_forward(shapes, name, width, 2048, tokens)
    shapes.normalisation("encoder.norm", width)
    shapes.embedding("target", PACE_VOCABULARY, width)
    for number in range(6):
        name = f"decoder{number}"
        _fused_attention(shapes, f"{name}.attention", width, tokens)
        _attention(shapes, f"{name}.cross", width, tokens, bias=False)
        _feed_forward(shapes, name, width, 2048, tokens)
    shapes.normalisation("decoder.norm", width)
    shapes.dense("output", width, PACE_VOCABULARY, tokens)
    return shapes.layers


def seq2seq() -> list[Layer]:
    """Return PACE's Seq2Seq (INFOCOM 2020, table II): 67.2 million parameters in 32 tensors, of unpublished shape.

    Here it is modelled on Wu et al., "Google's neural machine translation system" (2016), sections 3 and 3.1: LSTMs,
    a bidirectional first encoder layer, and attention's output as input of every decoder layer. Two encoder and four
    decoder layers, 512 wide, give 32 tensors, and 67.6 million parameters with the Transformer's vocabulary.
    """
    width, tokens = 512, TRANSFORMER_TOKENS
    shapes = Shapes()
    shapes.embedding("source", PACE_VOCABULARY, width)
    for direction in ("forward", "backward"):
        shapes.lstm(f"encoder0.{direction}", width, width, tokens)
    shapes.lstm("encoder1", 2 * width, width, tokens)
    shapes.embedding("target", PACE_VOCABULARY, width)
    for number in range(4):
        attended = 2 * tokens * tokens * width if number == 0 else 0
        shapes.lstm(f"decoder{number}", 2 * width, width, tokens, more_macs=attended)
    shapes.dense("output", width, PACE_VOCABULARY, tokens)
    return shapes.layers


def _attention(shapes: Shapes, name: str, width: int, tokens: int, bias: bool = True) -> None:
    """Add projections, attention of `tokens` to as many, and its normalisation; heads do not matter."""
    shapes.dense(f"{name}.query", width, width, tokens, bias=bias)
    shapes.dense(f"{name}.key", width, width, tokens, bias=bias)
    shapes.dense(f"{name}.value", width, width, tokens, bias=bias)
    shapes.dense(f"{name}.output", width, width, tokens, more_macs=2 * tokens * tokens * width, bias=bias)
    shapes.normalisation(f"{name}.norm", width)


def _fused_attention(shapes: Shapes, name: str, width: int, tokens: int) -> None:
    """Add self-attention whose three projections are one matrix, without biases."""
    shapes.dense(f"{name}.input", width, 3 * width, tokens, bias=False)
    shapes.dense(f"{name}.output", width, width, tokens, more_macs=2 * tokens * tokens * width, bias=False)
    shapes.normalisation(f"{name}.norm", width)


def _feed_forward(shapes: Shapes, name: str, width: int, inner: int, tokens: int, norm_macs: int = 0) -> None:
    shapes.dense(f"{name}.intermediate", width, inner, tokens)
    shapes.dense(f"{name}.output", inner, width, tokens)
    shapes.normalisation(f"{name}.norm", width, more_macs=norm_macs)
