"""What happens to an image before the ViT sees it."""

import numpy as np
import pytest
from PIL import Image

from data_lt.errors import UserError
from pilot_tal.stream.transforms import TRANSFORMS, build_transforms


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_pixels_from_0_to_1_in_the_right_size(name):
    image = Image.effect_noise((90, 50), 80).convert("RGB")
    for transform in build_transforms(name, 48):
        pixels = transform(image)
        assert pixels.shape == (3, 48, 48) and pixels.min() >= 0 and pixels.max() <= 1


def test_test_transform_resizes_256_to_224_and_crops_the_middle():
    image = Image.effect_noise((512, 256), 80).convert("RGB")
    _, test = build_transforms("pilot", 224)
    expected = image.crop((144, 16, 144 + 224, 16 + 224))
    got = (test(image).permute(1, 2, 0) * 255).round().byte().numpy()
    assert (got == np.asarray(expected)).all()


CROPS = {  # scale and ratio of the random crop, mirrored or not, what the test image is resized to
    "pilot": ((0.05, 1.0), (3 / 4, 4 / 3), True, 256, "bicubic"),
    "coda": ((0.08, 1.0), (3 / 4, 4 / 3), True, 256, "bilinear"),
    "characters": ((0.7, 1.0), (3 / 4, 4 / 3), False, 224, "bilinear"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_crops_and_flips_are_those_of_the_name(name):
    train, test = (transform.transforms for transform in build_transforms(name, 224))
    crop, resize, middle = train[0], test[0], test[1]
    flips = [step.p for step in train if type(step).__name__ == "RandomHorizontalFlip"]
    scale, ratio, flipped, size, mode = CROPS[name]
    assert (tuple(crop.size), crop.scale, crop.ratio) == ((224, 224), scale, ratio)
    assert flips == [0.5] * flipped
    assert (resize.size, resize.interpolation.value, tuple(middle.size)) == (size, mode, (224, 224))


def test_unknown_transform_is_refused():
    with pytest.raises(UserError, match="unknown transform 'pilots': did you mean 'pilot'"):
        build_transforms("pilots", 32)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_small_images_are_enlarged(name):
    """CIFAR's 32 pixels fill the ViT's 224: half black, half white stays so."""
    image = Image.new("RGB", (32, 32))
    image.paste((255, 255, 255), (16, 0, 32, 32))
    _, test = build_transforms(name, 224)
    pixels = test(image)
    assert pixels.shape == (3, 224, 224) and pixels[..., :90].max() < 0.1 and pixels[..., 134:].min() > 0.9
