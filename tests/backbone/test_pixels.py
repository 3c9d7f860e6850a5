"""What pixels a ViT gets, and what is said of those that get others than their weights expect."""

import pytest

from data_lt.errors import UserError
from pilot_tal.backbone.load import pixel_statistics, raw_pixels_note

PILOTS = "vit_base_patch16_224.augreg_in21k_ft_in1k"
DEIT = "deit_tiny_patch16_224.fb_in1k"
HALF = ((0.5,) * 3, (0.5,) * 3)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("choice", "name", "fidelity", "wanted"),
    [
        ("auto", PILOTS, "pilot", None),
        ("auto", "vit_base_patch16_224.augreg_in21k", "pilot", None),
        ("auto", PILOTS, "fixed", HALF),
        ("weights", PILOTS, "pilot", HALF),
        ("auto", DEIT, "pilot", IMAGENET),
        ("auto", DEIT, "fixed", IMAGENET),
        ("none", DEIT, "fixed", None),
        ("0.4/0.3", DEIT, "pilot", ((0.4,) * 3, (0.3,) * 3)),
        ("auto", "demo_vit", "pilot", None),
        ("weights", "demo_vit", "fixed", None),
    ],
)
def test_pixels_follow_the_weights_of_each_vit(choice, name, fidelity, wanted):
    assert pixel_statistics(choice, name, fidelity) == wanted


@pytest.mark.parametrize(
    "choice", ["nonsense", "0.5/", "a/b", "0.5,0.5/0.5", "0.5/0.5/0.5", "2/0.5", "0.5/0", "nan/0.5"]
)
def test_bad_mean_and_deviation_raise_one_sentence(choice):
    """Records come from outside, too: those of exported models."""
    with pytest.raises(UserError, match=r"a mean from 0 to 1 and a deviation from 0\.001 to 1000, each one number or"):
        pixel_statistics(choice, "vit_tiny_patch16_224", "fixed")


def test_missing_normalisation_is_reported():
    assert raw_pixels_note(None, DEIT, "hub", "pilot") == (
        f"Pixels are not normalised (normalize=none), although the weights of {DEIT} expect mean 0.485,0.456,0.406 and "
        "deviation 0.229,0.224,0.225; normalize=auto would do so."
    )
    assert "as in LAMDA-PILOT." in raw_pixels_note(None, PILOTS, "hub", "pilot")
    assert "normalize=auto would do so" in raw_pixels_note(None, PILOTS, "vit.npz", "fixed")
    for statistics, name, weights in [(IMAGENET, DEIT, "hub"), (None, DEIT, "random"), (None, "demo_vit", "bundled")]:
        assert raw_pixels_note(statistics, name, weights, "pilot") is None
