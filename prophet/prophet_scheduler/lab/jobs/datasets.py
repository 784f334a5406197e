"""Training data as NumPy arrays: scikit-learn's handwritten digits, random images, made-up text.

Rule of this file: no framework; results depend only on the arguments, and workers' shares differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Digits:
    """Images of shape [n, 1, 8, 8] in 0..1 (float32) and labels of shape [n] in 0..9 (int64)."""

    images: NDArray[Any]
    labels: NDArray[Any]
    test_images: NDArray[Any]
    test_labels: NDArray[Any]


def digits(rank: int = 0, size: int = 1) -> Digits:
    """Return the training share of worker `rank` of `size`, and the whole test set; the split is fixed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = (data.images / 16.0).astype("float32")[:, None]
    labels = data.target.astype("int64")
    parts = train_test_split(images, labels, test_size=TEST_SHARE, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts
    return Digits(train_images[rank::size], train_labels[rank::size], test_images, test_labels)


def batches(samples: int, batch_size: int, seed: int) -> Iterator[NDArray[Any]]:
    """Yield the indices of batches, endlessly. Each pass has a new order and drops an incomplete last batch.

    Samples too few for one batch form a single smaller batch.
    """
    noise = np.random.default_rng(seed)
    while True:
        order = noise.permutation(samples)
        for first in range(0, max(1, samples - batch_size + 1), batch_size):
            yield order[first : first + batch_size]


def random_images(batch_size: int, image_size: int, classes: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return one batch of noise: images [batch_size, 3, image_size, image_size] (float32) and labels (int64)."""
    noise = np.random.default_rng(seed)
    images = noise.standard_normal((batch_size, 3, image_size, image_size), dtype=np.float32)
    return images, noise.integers(0, classes, batch_size)


KNOWN = 0.9
"""Share of words determined by the previous word."""


def text(sentences: int, length: int, vocabulary: int, seed: int) -> NDArray[Any]:
    """Return sentences of a made-up language, [sentences, length] (int64) in 0..vocabulary-1.

    Each word has a unique successor, the same for every `seed`. It follows with probability `KNOWN`; otherwise the next
    word is random. So a model can learn the language, and the best possible accuracy is known.
    """
    successor = np.random.default_rng(0).permutation(vocabulary)
    noise = np.random.default_rng(seed)
    words = noise.integers(0, vocabulary, (sentences, length))
    known = noise.random((sentences, length)) < KNOWN
    for place in range(1, length):
        words[:, place] = np.where(known[:, place], successor[words[:, place - 1]], words[:, place])
    return words
