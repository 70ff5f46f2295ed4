"""For the package's pages: `**settings: Unpack[Settings]` stands in a function's signature as the
keyword arguments that it means, so that its docstring describes them as it does all others."""

from typing import Any

import griffe


class Settings(griffe.Extension):
    """Griffe's own `unpack_typeddict` takes descriptions from the TypedDict. Ours stand in the
    function's docstring, where `help()` shows them."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        for parameter in func.parameters:
            unpack = parameter.annotation
            if (
                parameter.kind is griffe.ParameterKind.var_keyword
                and isinstance(unpack, griffe.ExprSubscript)
                and unpack.canonical_path == "typing.Unpack"
            ):
                assert isinstance(unpack.slice, griffe.Expr)
                settings = func.modules_collection[unpack.slice.canonical_path]
                break
        else:
            return
        del func.parameters[parameter.name]
        for name, attribute in settings.attributes.items():
            func.parameters[name] = griffe.Parameter(
                name,
                annotation=attribute.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default="...",
            )
