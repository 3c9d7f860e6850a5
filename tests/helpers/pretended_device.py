"""A device that is none: its tensors hold their values on the CPU, but no operation may mix them with the CPU's.

    with PretendedDevice() as device:
        model.to(DEVICE)
        loss = criterion(model(x.to(DEVICE)), y.to(DEVICE))
        assert not device.waits

It finds out, on a machine without any accelerator, what would fail on one (tensors of two devices in one operation,
an AssertionError) and what would make the host wait for it (`waits`, by name): values read by `.item()`, `.cpu()`,
`.tolist()` or a condition, and operations whose result has a shape that depends on values.
"""

import contextlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = "meta"  # the one device that every build of torch knows and nobody trains on
aten = torch.ops.aten
_READS_VALUES = {
    aten._local_scalar_dense,
    aten._unique2,
    aten.bincount,
    aten.equal,
    aten.histc,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten.repeat_interleave,
    aten.unique_consecutive,
    aten.unique_dim,
}


class DeviceTensor(torch.Tensor):
    """Reports `DEVICE`; `host` has its values."""

    @staticmethod
    def __new__(cls, host: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )

    def __init__(self, host: torch.Tensor):
        self.host = host

    def __repr__(self):
        return f"DeviceTensor({self.host})"

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of PretendedDevice")


class PretendedDevice(TorchDispatchMode):
    """While it is entered, tensors made on or sent to `DEVICE` live on the pretended device."""

    def __init__(self):
        super().__init__()
        self.waits: list[str] = []

    def __enter__(self):
        self._patches = contextlib.ExitStack()
        self._patches.enter_context(mock.patch("torch.autocast", _autocast))  # it does not know this device
        for name in ("tensor", "as_tensor"):  # these would forget the values they are given
            made = _made_there(getattr(torch, name))
            self._patches.enter_context(mock.patch(f"torch.{name}", made))
        return super().__enter__()

    def __exit__(self, *error):
        self._patches.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted).type
        if wanted == DEVICE:
            kwargs["device"] = "cpu"  # where the values are
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        host_args, host_kwargs = tree_map_only(DeviceTensor, lambda tensor: tensor.host, (args, kwargs))
        packet = func.overloadpacket
        if packet is aten.copy_:
            return self._copy(*args[:2])
        if not here and wanted != DEVICE:
            return func(*args, **kwargs)
        if packet is not aten._to_copy and here:
            self._refuse_mixture(func, tensors)
        if packet in _READS_VALUES or _by_mask(packet, args):
            self.waits.append(str(func))
        result = func(*host_args, **host_kwargs)
        if here and wanted not in (None, DEVICE):
            self.waits.append(f"{func} to {wanted}")
            return result
        result = tree_map_only(torch.Tensor, DeviceTensor, result)
        return return_and_correct_aliasing(func, args, kwargs, result) if here else result

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if isinstance(source, DeviceTensor) and not isinstance(to, DeviceTensor):
            self.waits.append("aten.copy_ to cpu")
        values = [tensor.host if isinstance(tensor, DeviceTensor) else tensor for tensor in (to, source)]
        values[0].copy_(values[1])
        return to

    @staticmethod
    def _refuse_mixture(func, tensors) -> None:
        """A tensor of the CPU beside one of the device; torch allows single numbers."""
        if any(not isinstance(tensor, DeviceTensor) and tensor.dim() > 0 for tensor in tensors):
            raise AssertionError(f"{func} mixes devices: {[(str(t.device), list(t.shape)) for t in tensors]}")


def _by_mask(packet, args) -> bool:
    """Whether rows are picked by truth values, so that their number depends on them."""
    if packet not in (aten.index, aten.index_put, aten.index_put_):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _made_there(make):
    def made(data, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != DEVICE:
            return make(data, *args, device=device, **kwargs)
        return data if isinstance(data, DeviceTensor) else make(data, *args, **kwargs).to(DEVICE)

    return made


_real_autocast = torch.autocast


def _autocast(device_type: str, *args, **kwargs):
    return contextlib.nullcontext() if device_type == DEVICE else _real_autocast(device_type, *args, **kwargs)
