"""Copies of tensors that are overwritten: values, strides, launches, and memory that is used again."""

from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_what_lies_alike_is_copied_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch copies a list one by one where one pair of it has other strides or another dtype."""
    import torch

    from lamina.convert.torch import leaving

    lists, copy = list[int](), torch._foreach_copy_

    def counted(to: Any, given: Any) -> Any:
        lists.append(len(to))
        return copy(to, given)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    one = torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last)
    turned = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    given = [torch.randn(3), one, turned, torch.tensor([7]), torch.tensor(2.5), torch.ones(0, 2)]
    found = leaving.Leaving(given, [None] * 6).copies()
    assert sorted(lists) == [1, 1, 4]
    places = [leaving.plain(x) for x in given]
    assert places[1].stride() == (3, 1, 1, 1)
    leaving.copy_all(places, [torch.empty(x.shape, dtype=x.dtype) for x in places])
    assert sorted(lists[3:]) == [1, 1, 4]
    for x, y in zip(given, found, strict=True):
        assert y.is_contiguous()
        assert y.data_ptr() != x.data_ptr() or not x.numel()
        torch.testing.assert_close(y, x, rtol=0, atol=0)


def test_copies_have_the_strides_that_are_asked_for() -> None:
    import torch

    from lamina.convert.torch.leaving import Leaving, dense_strides

    like = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    thin = torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last)
    given = [torch.randn(4, 3, 2, 2), like, torch.randn(4, 3, 1, 1)]
    found = Leaving(given, [dense_strides(like), dense_strides(like), dense_strides(thin)]).copies()
    assert [y.stride() for y in found] == [like.stride(), like.stride(), thin.stride()]
    for x, y in zip(given, found, strict=True):
        assert torch.equal(x, y)
    assert dense_strides(torch.ones(2, 3).expand(4, 2, 3)) is None
    assert dense_strides(torch.ones(4, 6)[:, ::2]) is None


def test_small_tensors_are_copied_as_one_piece_that_is_used_again_once_it_is_free() -> None:
    import torch

    from lamina.convert.torch.leaving import Leaving

    block = torch.arange(24, dtype=torch.float32)  # two that lie together, with gaps, and one beside them
    places = [block[8:14].view(2, 3), torch.randn(5), block[0:1].view(())]
    leaving = Leaving(places, [None] * 3, block.view(torch.uint8), {2: 0, 0: 32})
    kept, memory = [], set()
    for k in range(4):
        block.fill_(k)
        found = leaving.copies()
        assert [x.shape for x in found] == [(2, 3), (5,), ()]
        assert found[0].untyped_storage().data_ptr() == found[2].untyped_storage().data_ptr()
        kept.append(found[0])
        memory.add(found[0].untyped_storage().data_ptr())
        del found
    assert len(memory) == 4  # all are held
    assert [x.tolist() for x in kept] == [[[k] * 3] * 2 for k in range(4)]
    first = kept[0].untyped_storage().data_ptr()
    view = kept[0][1:]
    kept.clear()
    assert first not in {x.untyped_storage().data_ptr() for x in leaving.copies()}
    assert view.tolist() == [[0.0] * 3]
    del view
    assert leaving.copies()[0].untyped_storage().data_ptr() == first


def test_copies_of_one_piece_are_no_views_of_each_other() -> None:
    """A write to one does not count as a write to another that autograd saved."""
    import torch

    from lamina.convert.torch.leaving import Leaving

    block = torch.ones(8)
    leaving = Leaving([block[:3], block[4:6]], [None] * 2, block.view(torch.uint8), {0: 0, 1: 16})
    a, b = leaving.copies()
    assert not a._is_view()
    w = torch.ones(3, requires_grad=True)
    y = (w * a).sum()
    b.mul_(5)
    y.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0] * 3
    y = (w * a).sum()
    a.mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
