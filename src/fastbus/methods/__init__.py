"""Competing methods: objectives of other papers on the same trainer, chosen by name."""

from fastbus.methods.registry import (
    MODULES,
    Method,
    MethodOptions,
    get_method,
    method_names,
    methods_for,
    objective_of,
    register,
)

__all__ = [
    "MODULES",
    "Method",
    "MethodOptions",
    "get_method",
    "method_names",
    "methods_for",
    "objective_of",
    "register",
]
