"""The whole classifier as one ONNX graph: images in, scores out."""

import contextlib
import importlib.util
import io
import json
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.model.model import Model
from pilot_tal.version import install_hint

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4


class Classifier(nn.Module):
    """From pixels in [0, 1] to shares of one: normalisation, learner and ViT."""

    def __init__(self, model: Model):
        super().__init__()
        self.learner = model.learner
        mean, std = model.statistics or ((0.0,) * 3, (1.0,) * 3)
        self.mean, self.std = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))

    def forward(self, images: Tensor) -> Tensor:
        """Shares of one [B, classes] of images [B, 3, height, width]."""
        return self.learner.probabilities(self.learner.scores((images - self.mean) / self.std))


def check_packages() -> None:
    """Says what is missing before anything is computed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--onnx needs {' and '.join(missing)}; install them {install_hint('onnx')}")


def write_graph(model: Model, file: Path) -> None:
    """Writes the graph, for batches of any size, and compares what onnxruntime makes of it with the model.

    Raises:
        UserError: the learner's prediction is no fixed graph, or the graph gives other scores.
    """
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    classifier = Classifier(model).eval()
    generator = torch.Generator().manual_seed(0)
    # As many images as no other axis is long, so that none is taken for the batch.
    x = torch.rand(5, 3, *model.learner.backbone.img_size, generator=generator)
    said = io.StringIO()
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore")  # about the exporter's own workings
            program = torch.onnx.export(
                classifier,
                (x,),
                dynamo=True,
                input_names=["images"],
                output_names=["scores"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                verbose=False,
            )
            assert program is not None
            ClearMetadataAndDocStringPass()(program.model)  # drops paths of this machine
            program.model.metadata_props["classes"] = json.dumps(model.classes, ensure_ascii=False)
            program.save(file, external_data=False)
    except Exception as error:  # the exporter has many of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{model.record.method.title} cannot be written as an ONNX graph: {reason[:200]}") from error
    _compare(classifier, file, x)


@torch.no_grad()
def _compare(classifier: Classifier, file: Path, x: Tensor) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for images in (x, x[:1]):
        wanted = classifier(images)
        given = torch.from_numpy(session.run(["scores"], {"images": images.numpy()})[0])
        apart = float((wanted - given).abs().max())
        if not apart <= TOLERANCE or not torch.equal(wanted.argmax(dim=1), given.argmax(dim=1)):
            raise UserError(
                f"the ONNX graph gives scores that are {apart:.1e} off, which is too much; leave out --onnx"
            )
