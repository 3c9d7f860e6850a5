"""Makes `import torchvision` (and so `import timm`) work beside a CPU-only torch.

The registry's torchvision is built for CUDA. Beside a CPU-only torch its compiled operators do not load and
the import stops at "operator torchvision::nms does not exist". Declaring the two operators that its Python code
asks for is enough: we use its image transforms only. Nothing is declared where the plain import works.

Every module that needs torchvision or timm imports this one first.
"""

import sys

import torch


def _declare_missing_operators() -> "torch.library.Library":
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


try:
    import torchvision
except (RuntimeError, AttributeError, OSError) as error:
    if "torchvision" not in str(error) and "nms" not in str(error):
        raise
    for _name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[_name]
    _library = _declare_missing_operators()  # kept alive: the operators vanish with it
    import torchvision  # noqa: F401
