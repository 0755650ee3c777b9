"""Errors for shapes, dtypes or layouts that do not fit, raised before any library is called."""


class ShapeError(ValueError, RuntimeError):
    """Sizes that do not fit the op or each other; the message names the op and the shapes.

    A RuntimeError too, which PyTorch raises for most of them, so that programs that catch its errors catch these."""


class OutsideError(ShapeError, IndexError):
    """An index or an axis out of range. As an IndexError it ends a `for` over an object whose `__getitem__` reads
    elements of a tensor."""


class DTypeError(TypeError, RuntimeError):
    """A dtype that the op does not support; the message names the op and the supported ones. A RuntimeError too, as
    PyTorch's."""
