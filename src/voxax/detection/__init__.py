"""3-D object detection: boxes, overlap, NMS, targets, losses, decoding, metrics, augmentation."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
