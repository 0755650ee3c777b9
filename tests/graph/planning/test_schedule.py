"""The order of nodes: updates as early as nothing reads the old value."""

from lamina import ops
from lamina.graph import trace
from lamina.graph.planning.schedule import schedule
from lamina.spec import Spec, float32


def test_updates_run_as_soon_as_the_old_value_is_dead() -> None:
    def f(p, x):  # type: ignore[no-untyped-def]
        a = p * x
        b = ops.exp(a)
        for _ in range(3):
            b = ops.tanh(b)
        return p + 1.0, b

    graph = trace(f, Spec((4,), float32), Spec((4,), float32))
    order = [n.op.name for n in schedule(graph, {0: 0})]
    assert order.index("add") == order.index("mul") + 1


def test_updates_wait_for_each_other_and_for_later_readers() -> None:
    """Two states, the second made of the first one's new value; a third that is read after its update stays there."""

    def f(p, q, r, x):  # type: ignore[no-untyped-def]
        new_r = r + x
        late = ops.exp(ops.tanh(x) * r)
        new_p = p + x
        return new_p, q + new_p, new_r, late

    x = Spec((4,), float32)
    graph = trace(f, x, x, x, x)
    order = [graph.nodes.index(n) for n in schedule(graph, {0: 0, 1: 1, 2: 2})]
    assert [graph.nodes[i].op.name for i in order] == ["add", "add", "add", "tanh", "mul", "exp"]
    assert order == [4, 5, 0, 1, 2, 3]


def test_any_number_of_updates_keeps_the_order_sound() -> None:
    """Each node runs after what it reads, and each update after the readers of what it replaces."""

    def f(*values):  # type: ignore[no-untyped-def]
        y, results = values[-1], []
        for p in values[:-1]:
            y = ops.tanh(y * p)
        for p in values[:-1]:
            results.append(p + y)
        return results

    count = 300
    graph = trace(f, *[Spec((2,), float32)] * (count + 1))
    order = schedule(graph, {i: i for i in range(count)})
    place = {n: i for i, n in enumerate(order)}
    assert sorted(order, key=lambda n: n.serial) == graph.nodes
    for node in order:
        assert all(place[v.node] < place[node] for v in node.inputs if v.node)
    last = order[-count - 1]
    assert last.op.name == "tanh"
