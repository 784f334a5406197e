"""The zoo: shapes against published totals, profiles, and what is carried over from published timings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.models import zoo
from prophet_scheduler.models.zoo import timings
from prophet_scheduler.models.zoo.stepwise import scaled_bytes
from prophet_scheduler.models.zoo.timings import published, timing


@pytest.mark.parametrize(
    ("model", "tensors", "parameters", "giga_macs"),
    [
        # Parameters and multiplications as torchvision publishes them for its weights ("GFLOPS", which count a
        # multiplication and an addition as one); without Inception-v3's auxiliary classifier.
        ("resnet18", 62, 11_689_512, 1.81),
        ("resnet50", 161, 25_557_032, 4.09),
        ("resnet101", 314, 44_549_160, 7.80),
        ("resnet152", 467, 60_192_808, 11.51),
        ("vgg16", 32, 138_357_544, 15.47),
        ("vgg19", 38, 143_667_240, 19.63),
        ("alexnet", 16, 61_100_840, 0.71),
        ("inception-v3", 284, 23_834_568, 5.71),
        # Caffe's bvlc_googlenet without its auxiliary classifiers; "1.5 billion multiply-adds" (CVPR 2015).
        ("googlenet", 116, 6_998_552, 1.58),
        # BertModel of Hugging Face for bert-base-uncased and bert-large-uncased: "110M" and "340M" in the paper.
        ("bert-base", 199, 109_482_240, None),
        ("bert-large", 391, 335_141_888, None),
    ],
)
def test_the_shapes_add_up_to_what_is_published(
    model: str, tensors: int, parameters: int, giga_macs: float | None
) -> None:
    layers = zoo.layers(model)
    assert len(layers) == tensors
    assert sum(layer.elements for layer in layers) == parameters
    if giga_macs is not None:
        assert sum(layer.macs for layer in layers) / 1e9 == pytest.approx(giga_macs, abs=0.006)


def test_the_transformer_is_near_the_papers_65_million() -> None:
    # Table 3 says 65 million, and the size of the vocabulary is "about 37000": more was not published.
    assert sum(layer.elements for layer in zoo.layers("transformer")) == pytest.approx(65e6, rel=0.04)


@pytest.mark.parametrize(
    ("model", "tensors", "millions", "within"),
    [
        # PACE, table II. The vocabulary was chosen for the first; the second shows whether the shapes can be right.
        ("transformer-untied", 164, 91.8, 0.001),
        ("seq2seq", 32, 67.2, 0.01),
    ],
)
def test_paces_translators_have_the_sizes_of_its_table(
    model: str, tensors: int, millions: float, within: float
) -> None:
    layers = zoo.layers(model)
    assert len(layers) == tensors
    assert sum(layer.elements for layer in layers) / 1e6 == pytest.approx(millions, rel=within)


@pytest.mark.parametrize("figure", ["pace-fig8", "pace-fig9"])
def test_paces_translators_compute_at_the_rate_at_which_vgg16_is_published(figure: str) -> None:
    """The configs spell the seconds out; they must be what the work of that many tokens is at that rate."""
    config = Path(__file__).parents[2] / "configs" / "papers" / f"{figure}.yaml"
    forward_s, backward_s = timing("vgg16", "gtx-1080-ti", 16)
    batch_macs = 16 * sum(layer.macs for layer in zoo.layers("vgg16"))
    checked = set()
    for entry in yaml.safe_load(config.read_text(encoding="utf-8"))["sweep"]:
        job = entry.get("job", {})
        if (model := job.get("profile")) in ("transformer-untied", "seq2seq"):
            share = job["batch_size"] * sum(layer.macs for layer in zoo.layers(model)) / batch_macs
            assert job["forward_s"] == pytest.approx(forward_s * share, rel=0.01)
            assert job["backward_s"] == pytest.approx(backward_s * share, rel=0.01)
            checked.add(model)
    assert checked == {"transformer-untied", "seq2seq"}


def test_berts_work_is_that_of_its_products() -> None:
    # 12 layers of 12 x 768^2 weights for 128 tokens, two products of 128 x 128 x 768, and the pooler for one token.
    by_hand = 12 * (12 * 768**2 * 128 + 2 * 128**2 * 768) + 768**2
    assert sum(layer.macs for layer in zoo.layers("bert-base")) == by_hand


def test_vgg19_appears_in_the_papers_four_steps_with_the_work_between_them() -> None:
    gradients = zoo.profile("vgg19", backward_s=1.0).gradients
    times = [gradient.generation_s for gradient in gradients]
    assert [times.index(time) for time in dict.fromkeys(times)] == [0, 2, 14, 28]
    assert times[0] == 1.0
    layers = zoo.layers("vgg19")
    late = sum(layer.macs for layer in layers[28:])
    assert times[28] == pytest.approx(late / sum(layer.macs for layer in layers))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet34"}, "unknown model 'resnet34'; known models are resnet50, resnet18"),
        ({"model": "vgg16", "steps": 0}, "profile vgg16: steps is 0; give at least 1"),
        ({"model": "vgg16", "batch_size": 16, "device": "abacus"}, "device 'abacus' has no published timings; known"),
        ({"model": "vgg16", "batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"model": "bert-base", "batch_size": 8}, "bert-base has no published timing to carry over to m60; give back"),
        ({"model": "resnet50", "total_bytes": 600}, "total_bytes is 600, too small to scale to; give at least 10 kB"),
    ],
)
def test_what_makes_no_profile_is_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        zoo.profile(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", zoo.MODELS)
def test_the_size_that_the_error_asks_for_is_enough(model: str) -> None:
    with pytest.raises(UserError, match="give at least") as error:
        zoo.profile(model, total_bytes=8)
    enough = int(str(error.value).split()[-2]) * 1000
    assert zoo.profile(model, total_bytes=enough).total_bytes == enough


def test_sizes_keep_their_proportions() -> None:
    layers = zoo.layers("vgg19")
    sizes = scaled_bytes("vgg19", layers, 57_466_896)  # a tenth
    assert sum(sizes) == 57_466_896
    for layer, size in zip(layers, sizes, strict=True):
        assert size == pytest.approx(layer.elements * 0.4, abs=4 * len(layers))


def rate(model: str, device: str, batch_size: int) -> float:
    """Return samples per second."""
    return batch_size / sum(timing(model, device, batch_size))


def test_published_timings_are_what_the_sources_say() -> None:
    tables = yaml.safe_load(Path(timings.__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    rows = [row for kind in ("milliseconds", "samples_per_s") for row in tables[kind]]
    assert all(row["source"] and row["device"] in tables["similar"] for row in rows)
    assert {model for row in rows for model in row["models"]} <= set(zoo.MODELS)
    assert sum(len(row["models"]) for row in rows) == sum(map(len, published().values())), "one each"
    assert timing("resnet50", "m60", 16) == (0.09189, 0.17312)
    assert rate("resnet50", "m60", 64) == pytest.approx(72.83)
    forward_s, backward_s = timing("resnet50", "m60", 64)
    assert backward_s == pytest.approx(2 * forward_s)


def test_two_sources_of_the_papers_gpu_agree() -> None:
    """One M60 in Torch at a batch of 16, and the paper's worker at 64: a worker of the paper is one GPU's worth."""
    for model in ("resnet18", "resnet50"):
        assert 1.0 < rate(model, "m60", 64) / rate(model, "m60", 16) < 1.25


def test_a_batch_size_that_was_not_measured_takes_its_share() -> None:
    assert timing("resnet152", "m60", 32) == tuple(2 * time_s for time_s in timing("resnet152", "m60", 16))
    # 32 is as far from 16 as from 64: the larger one counts.
    assert rate("resnet50", "m60", 32) == pytest.approx(72.83)


def test_a_model_that_was_not_measured_goes_by_its_ratio_to_resnet50_elsewhere() -> None:
    """On the TITAN X, the most similar device."""
    assert rate("resnet50", "m60", 40) / rate("inception-v3", "m60", 40) == pytest.approx(111.04 / 82.34)
    carried, own = timing("inception-v3", "m60", 40), timing("resnet50", "m60", 40)
    assert carried[0] / carried[1] == pytest.approx(own[0] / own[1])


def test_a_batch_size_gives_a_profile_its_published_times() -> None:
    profile = zoo.profile("resnet152", batch_size=16)
    assert profile.backward_s == pytest.approx(0.35960)
    assert profile.forward_s == pytest.approx(0.20083)
    other = zoo.profile("resnet152", batch_size=16, device="v100", forward_s=0.1)
    assert (other.backward_s, other.forward_s) == pytest.approx((0.11758, 0.1))
