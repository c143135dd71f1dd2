"""Which variables a chat template takes from whoever renders it.

jinja2's own `find_undeclared_variables` also tells names that are set in one branch and read only there, which nobody
can give a value from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes

Names = frozenset[str]
_IN_LOOPS = frozenset({"loop"})
_IN_MACROS = frozenset({"caller", "varargs", "kwargs"})
_RAISE = "raise_exception"


def names_read(template: nodes.Template) -> Names:
    """Those that are read where nothing in the template has surely set them. What is a macro somewhere is none."""
    reader = _Reader(template)
    reader.block(template.body, frozenset(macro.name for macro in template.find_all(nodes.Macro)))
    return frozenset(reader.found)


class _Reader:
    """Each method takes the names that are set before a node, and gives those that are set behind it: all names, if
    the rendering never gets there."""

    def __init__(self, template: nodes.Template) -> None:
        self.found: set[str] = set()
        self._everything: Names = frozenset(name.name for name in template.find_all(nodes.Name) if name.ctx == "store")

    def block(self, body: Iterable[nodes.Node | None], known: Names) -> Names:
        for node in body:
            known = self._statement(node, known)
        return known

    def _statement(self, node: Any, known: Names) -> Names:
        match node:
            case nodes.Name(ctx="load"):
                self.found |= {node.name} - known
            case nodes.Assign():
                return self._statement(node.node, known) | self._stored(node.target, known)
            case nodes.AssignBlock():
                self.block([node.filter, *node.body], known)
                return known | self._stored(node.target, known)
            case nodes.If():
                return self._branches(node, known)
            case nodes.For():
                self._statement(node.iter, known)
                self.block([node.test, *node.body], known | _IN_LOOPS | self._stored(node.target, known))
                self.block(node.else_, known)
            case nodes.Macro():
                self.block(node.defaults, known)
                # It runs when it is called, and then sees what was set after it too.
                self.block(node.body, known | self._everything | _IN_MACROS | {arg.name for arg in node.args})
            case nodes.CallBlock():
                self.block([node.call, *node.defaults], known)
                self.block(node.body, known | {arg.name for arg in node.args})
            case nodes.With():
                self.block(node.values, known)
                self.block(node.body, known.union(*(self._stored(target, known) for target in node.targets)))
            case nodes.Call(node=nodes.Name(name=name)) if name == _RAISE:
                self.block(node.iter_child_nodes(), known)
                return known | self._everything
            case nodes.Output():
                return self.block(node.nodes, known)
            case nodes.Node():
                self.block(node.iter_child_nodes(), known)
        return known

    def _branches(self, node: nodes.If, known: Names) -> Names:
        """What each way through sets."""
        ways = []
        for one in (node, *node.elif_):
            self._statement(one.test, known)
            ways.append(self.block(one.body, known))
        return frozenset.intersection(*ways, self.block(node.else_, known))

    def _stored(self, target: nodes.Node, known: Names) -> Names:
        """The names of an assignment's target. An attribute of a namespace reads it."""
        for ref in [target] if isinstance(target, nodes.NSRef) else target.find_all(nodes.NSRef):
            self._statement(nodes.Name(ref.name, "load"), known)
        names = [target] if isinstance(target, nodes.Name) else target.find_all(nodes.Name)
        return frozenset(name.name for name in names)
