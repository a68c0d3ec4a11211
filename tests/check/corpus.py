"""Files of cases: programs with their verdicts and a comment `# expect: CODE` on each faulty line.

A case is a function, a class without arguments or a value that :func:`case` decorates. The helpers
before it belong to it, and all cases share the lines before the first one.
"""

import ast
import dataclasses
import functools
import importlib.util
import re
from pathlib import Path

EXPECTED = re.compile(r"# expect: ([A-Z0-9, ]+)$")


def case(verdict, *inputs, static=()):
    """Mark a program: its verdict, example inputs, and which of its arguments are static."""
    return lambda model: model


def load(path):
    spec = importlib.util.spec_from_file_location(f"cases.{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded = functools.cache(load)


@dataclasses.dataclass(frozen=True)
class Case:
    """One program of a file, which is read from the syntax tree: nothing is imported for that."""

    path: Path
    name: str
    variable: str
    call: ast.Call
    head: int  # the last line that all cases share
    first: int
    last: int

    @property
    def verdict(self):
        return self.call.args[0].value

    @property
    def static(self):
        return tuple(sorted(v for k in self.call.keywords for v in ast.literal_eval(k.value)))

    def build(self):
        """Make the model anew."""
        module = _loaded(self.path)
        model = getattr(module, self.variable)
        if hasattr(module, "torch"):
            module.torch.manual_seed(0)
        return model() if isinstance(model, type) else model

    def inputs(self):
        expression = ast.Tuple(self.call.args[1:], ast.Load())
        code = compile(ast.fix_missing_locations(ast.Expression(expression)), "inputs", "eval")
        return eval(code, vars(_loaded(self.path)))

    def expected(self):
        """The lines with faults and their codes, sorted."""
        return sorted(
            (number, code.strip())
            for number, line in enumerate(self.path.read_text().splitlines(), 1)
            if self.first <= number <= self.last and (match := EXPECTED.search(line))
            for code in match[1].split(",")
        )

    def alone(self, folder):
        """Write a file with this case's `model` and nothing of other cases, and return its path."""
        lines = self.path.read_text().splitlines()
        chosen = [*lines[: self.head], *lines[self.first - 1 : self.last]]
        made = f"{self.variable}()" if self.variable != self.name else self.variable
        path = folder / f"{self.name}.py"
        path.write_text("\n".join([*chosen, f"model = {made}", ""]))
        return path


def cases_of(name):
    """The cases of a file of this folder, by name; a class `OfWords` is the case `of_words`."""
    path = Path(__file__).with_name(name)
    found, end = {}, None
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            variable, call = node.targets[0].id, node.value.func
        else:
            variable = getattr(node, "name", "")
            call = next(iter(getattr(node, "decorator_list", ())), None)
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "case":
            continue
        case_name = re.sub(r"(?<!^)(?=[A-Z])", "_", variable).lower()
        end = call.lineno - 1 if end is None else end
        head = next(iter(found.values())).head if found else end
        found[case_name] = Case(path, case_name, variable, call, head, end + 1, node.end_lineno)
        end = node.end_lineno
    return found
