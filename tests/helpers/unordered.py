"""Finds, in the text of modules, where the order of a set might come out: two processes need not have the same.

What is a set is found by the text alone: displays, calls of `set`, operators between sets or the keys of dictionaries, names that
are bound to one of these, and what is annotated as one, as a variable, an attribute (by its name, in whatever class) or the
outcome of a function. Such a thing may be asked about, compared, counted, sorted or made another set of. Whatever else is done
with it, as iterating over it, or giving it to a function that may, is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import attrs

MAKES = ("set", "frozenset")
TYPES = ("set", "frozenset", "Set", "AbstractSet", "MutableSet")
OPERATORS = (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor)
MAKES_ANOTHER = ("union", "intersection", "difference", "symmetric_difference", "copy")
"""Methods of a set that give a set."""
ORDERLESS = ("all", "any", "bool", "frozenset", "isinstance", "len", "max", "min", "set", "sorted", "sum")
"""Functions that give the same for each order. (`sum` of floats may not, but nothing of the core depends on its last bit.)"""
ORDERLESS_METHODS = (
    *MAKES_ANOTHER, "update", "add", "discard", "remove", "clear", "isdisjoint", "issubset", "issuperset",
    "intersection_update", "difference_update", "symmetric_difference_update",
)  # fmt: skip
KEYS = ("keys", "items")


@attrs.define
class _Known:
    """What is a set wherever it is named so: attributes, and functions."""

    attributes: dict[str, bool] = attrs.field(factory=dict)
    """… and whether that is a table of sets, and not one itself"""
    functions: dict[str, bool] = attrs.field(factory=dict)


def set_orders(texts: Iterable[tuple[str, str]]) -> list[str]:
    """The places in these modules, each a name and its text, where the order of a set might come out."""
    trees = [(name, ast.parse(text)) for name, text in texts]
    known = _Known()
    for _, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                _note(known.functions, node.name, node.returns)
                if any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list):
                    _note(known.attributes, node.name, node.returns)
            elif isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        _note(known.attributes, field.target.id, field.annotation)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                _note(known.attributes, node.target.attr, node.annotation)
    return [f"{name}:{line}" for name, tree in trees for line in sorted(set(_Scope(known, {}).find(tree)))]


def _note(table: dict[str, bool], name: str, annotation: ast.expr | None) -> None:
    kind = _kind_of(annotation)
    if kind is not None:
        table[name] = kind


def _kind_of(annotation: ast.expr | None) -> bool | None:
    """Whether something is annotated as a table of sets; None if it is not annotated as anything of sets."""
    if annotation is None:
        return None
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _kind_of(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.BinOp):  # X | None
        kinds = [kind for side in (annotation.left, annotation.right) if (kind := _kind_of(side)) is not None]
        return kinds[0] if kinds else None
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    if _last_name(base) in TYPES:
        return False
    inside = ast.walk(annotation) if isinstance(annotation, ast.Subscript) else iter(())
    return True if any(_last_name(node) in TYPES for node in inside) else None


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@attrs.define
class _Scope:
    """A module or a function, and its names that are sets, or tables of sets."""

    known: _Known
    names: dict[str, bool]

    def find(self, owner: ast.AST) -> Iterator[int]:
        """The lines of this scope, and of those in it, at which an order might come out."""
        nodes = list(_of_scope(owner))
        before = None
        while before != self.names:  # what is bound to a name that is bound further down
            before = dict(self.names)
            for node in nodes:
                self._bind(node)
        for node in nodes:
            yield from self._judge(node)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                inner = _Scope(self.known, dict(self.names))
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                for argument in arguments:
                    inner.names.pop(argument.arg, None)
                    _note(inner.names, argument.arg, argument.annotation)
                yield from inner.find(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _note(self.names, node.target.id, node.annotation)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_to(target, node.value)
        elif isinstance(node, (ast.NamedExpr, ast.AugAssign)):
            self._bind_to(node.target, node.value)
        elif isinstance(node, (ast.For, ast.comprehension)) and self._is_table(node.iter):
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            self.names.update({_last_name(targets[-1]): False})

    def _bind_to(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if self.is_set(value):
                self.names[target.id] = False
            elif self._is_table(value):
                self.names[target.id] = True
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for one, part in zip(target.elts, value.elts, strict=False):
                self._bind_to(one, part)

    def _kind(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        return self.known.attributes.get(node.attr) if isinstance(node, ast.Attribute) else None

    def _is_table(self, node: ast.expr) -> bool:
        """Whether it is a table of sets, or what such a table is iterated over by."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("values", "items")
        ):
            node = node.func.value
        return self._kind(node) is True

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set."""
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._kind(node) is False
        if isinstance(node, ast.Subscript):
            return self._is_table(node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
            return any(self.is_set(side) or _is_keys(side) for side in (node.left, node.right))
        if isinstance(node, ast.IfExp):
            return self.is_set(node.body) or self.is_set(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_set, node.values))
        if isinstance(node, (ast.NamedExpr, ast.Await)):
            return self.is_set(node.value)
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            receiver, method = node.func.value, node.func.attr
            if method in MAKES_ANOTHER and self.is_set(receiver):
                return True
            if method in ("get", "setdefault", "pop") and self._is_table(receiver):
                return True
        if isinstance(node.func, ast.Subscript):  # set[str]()
            return _last_name(node.func.value) in MAKES
        name = _last_name(node.func)
        return name in MAKES or self.known.functions.get(name) is False

    def _judge(self, node: ast.AST) -> Iterator[int]:
        if isinstance(node, (ast.For, ast.AsyncFor, ast.YieldFrom, ast.Starred)):
            looped = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.value
            if self.is_set(looped):
                yield node.lineno
        elif isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
            if any(self.is_set(one.iter) for one in node.generators):
                yield node.lineno
        elif isinstance(node, ast.Assign):
            if any(isinstance(target, (ast.Tuple, ast.List)) for target in node.targets) and self.is_set(node.value):
                yield node.lineno
        elif isinstance(node, ast.Call):
            yield from self._judge_call(node)

    def _judge_call(self, call: ast.Call) -> Iterator[int]:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Attribute):
            is_own = self.is_set(call.func.value)
            if is_own and call.func.attr == "pop":
                yield call.lineno  # which one?
            is_orderless = is_own and call.func.attr in ORDERLESS_METHODS
        else:
            has_ties = any(keyword.arg == "key" for keyword in call.keywords)
            is_orderless = _last_name(call.func) in ORDERLESS and not has_ties
        if not is_orderless and any(map(self.is_set, arguments)):
            yield call.lineno


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEYS


def _of_scope(owner: ast.AST) -> Iterator[ast.AST]:
    """Everything in a module or a function, without what is in the functions in it, but with these themselves.

    What a generator yields to a function that gives the same for each order is left out where that is all that is done with it.
    """
    for child in ast.iter_child_nodes(owner):
        yield child
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in ORDERLESS:
            for argument in (*child.args, *(keyword.value for keyword in child.keywords)):
                if isinstance(argument, ast.GeneratorExp):
                    yield from (node for part in argument.generators for node in ast.walk(part))
                    yield from ast.walk(argument.elt)
                else:
                    yield argument
                    yield from _of_scope(argument)
        else:
            yield from _of_scope(child)
