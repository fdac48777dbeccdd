"""Test-only shim: let PyPI's torchvision (a CUDA build) import next to a CPU torch.

Put this directory first on PYTHONPATH; spawned children inherit it.  It costs nothing
until something imports torchvision, and it registers schemas only, no kernels: image
models are not what we run, SGLang merely imports torchvision.transforms at start-up.
"""

import sys


class _TorchvisionSchemas:
    done = False

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and not self.done:
            self.done = True
            import torch

            if torch.version.cuda is not None:
                return None  # a matching torchvision registers these itself
            for op, sig in (
                ("nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
                ("qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
            ):
                if not hasattr(torch.ops.torchvision, op):
                    lib = torch.library.Library("torchvision", "FRAGMENT")
                    lib.define(op + sig)
                    _KEEP.append(lib)
        return None


_KEEP = []
sys.meta_path.insert(0, _TorchvisionSchemas())
