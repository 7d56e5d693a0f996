"""Eight float64 numbers at a time, for the CPU kernels: the lanes are eight classes of a bag.

Numba leaves it to the compiler to find what can be done at once, which fails in short inner loops. Here the vectors
are written down; the compiler only chooses the registers they go to, on any processor.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg"

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

if getattr(config, "DISABLE_JIT", False):  # as debuggers want it; vectors exist in compiled code alone
    raise ImportError("Numba is told not to compile")

LANES = 8
# a * b + c may be one instruction, but nothing about infinities and NaN is taken for granted; x / 0 is no error
_OPTIONS: Any = {"fastmath": {"contract"}, "nogil": True, "error_model": "numpy"}
part: Any = njit(**_OPTIONS)  # called from kernels


def kernel(function: Any) -> Any:
    """Called from Python, and kept on disk once compiled, where there is a place for it.

    What is kept is renewed when the kernel's own file changes; after a change of its parts in other files, delete
    the *.nbi beside it.
    """
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return part(function)


DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
SINGLES = ir.VectorType(ir.FloatType(), LANES)
INTEGERS = ir.VectorType(ir.IntType(64), LANES)


class Lanes(types.Type):
    """The type of a vector, as Numba knows it."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type) -> None:
        super().__init__(manager, numba_type, DOUBLES)


def _repeated(value, of):
    return ir.Constant(of, [value] * LANES)


def _address(context, builder, array_type, array, place):
    """Of the entry `place` of a one-dimensional array, as the address of a vector; whether its numbers are short."""
    data = context.make_array(array_type)(context, builder, array).data
    short = array_type.dtype == types.float32
    return builder.bitcast(builder.gep(data, [place]), (SINGLES if short else DOUBLES).as_pointer()), short


@intrinsic
def load(typingctx, array, place):
    """array[place : place + 8], of float32 or float64."""

    def codegen(context, builder, signature, arguments):
        source, short = _address(context, builder, signature.args[0], *arguments)
        value = builder.load(source)
        value.align = 4 if short else 8
        return builder.fpext(value, DOUBLES) if short else value

    return lanes(array, types.intp), codegen


@intrinsic
def store(typingctx, array, place, value):
    """array[place : place + 8] = value, rounded if the array is of float32."""

    def codegen(context, builder, signature, arguments):
        target, short = _address(context, builder, signature.args[0], *arguments[:2])
        value = builder.fptrunc(arguments[2], SINGLES) if short else arguments[2]
        builder.store(value, target).align = 4 if short else 8
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), codegen


@intrinsic
def splat(typingctx, value):
    """The same number in every lane."""

    def codegen(context, builder, signature, arguments):
        single = builder.insert_element(ir.Constant(DOUBLES, ir.Undefined), arguments[0], cgutils.intp_t(0))
        return builder.shuffle_vector(
            single, ir.Constant(DOUBLES, ir.Undefined), _repeated(0, ir.VectorType(ir.IntType(32), LANES))
        )

    return lanes(types.float64), codegen


def _binary(operation):
    """An operation on two vectors."""

    def typed(typingctx, a, b):
        def codegen(context, builder, signature, arguments):
            return getattr(builder, operation)(*arguments, flags=("contract",))

        return lanes(lanes, lanes), codegen

    return intrinsic(typed)


add, subtract, multiply, divide = (_binary(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def where_above(typingctx, a, b, yes, no):
    """yes where a > b, else no."""

    def codegen(context, builder, signature, arguments):
        a, b, yes, no = arguments
        return builder.select(builder.fcmp_ordered(">", a, b), yes, no)

    return lanes(lanes, lanes, lanes, lanes), codegen


@intrinsic
def any_above(typingctx, a, b):
    """Whether a > b in any lane."""

    def codegen(context, builder, signature, arguments):
        flags = builder.bitcast(builder.fcmp_ordered(">", *arguments), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", flags, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(lanes, lanes), codegen


@intrinsic
def load_integers(typingctx, array, place):
    """array[place : place + 8] of int64, as float64."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        value = builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), INTEGERS.as_pointer()))
        value.align = 8
        return builder.sitofp(value, DOUBLES)

    return lanes(array, types.intp), codegen


@intrinsic
def power_of_two(typingctx, shifted):
    """2**n, where `shifted` is n + 1.5 * 2**52, whose last bits are those of n."""

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], INTEGERS)
        exponent = builder.shl(bits, _repeated(52, INTEGERS))
        return builder.bitcast(builder.add(exponent, _repeated(1023 << 52, INTEGERS)), DOUBLES)

    return lanes(lanes), codegen


LOWEST = -708.0  # below, exp would lose digits; e**-708 is as good as nothing
MAGIC = 1.5 * 2.0**52
PER_LOG2 = 1 / math.log(2)
LOG2_HIGH = 6.93147180369123816490e-01  # its last bits are zeros, so that multiples of it are exact
LOG2_LOW = 1.90821492927058770002e-10
TAYLOR = tuple(1 / math.factorial(n) for n in range(14))


@part
def fma(a, b, c):
    return add(multiply(a, b), c)


@part
def magnitude(a):
    return where_above(a, splat(0.0), a, subtract(splat(0.0), a))


@part
def exp_of_negative(x):
    """exp of numbers <= 0 to the last bit or so; of those below -708 as of -708."""
    x = where_above(x, splat(LOWEST), x, splat(LOWEST))
    shifted = fma(x, splat(PER_LOG2), splat(MAGIC))
    n = subtract(shifted, splat(MAGIC))
    rest = fma(n, splat(-LOG2_LOW), fma(n, splat(-LOG2_HIGH), x))
    value = splat(TAYLOR[13])
    value = fma(value, rest, splat(TAYLOR[12]))
    value = fma(value, rest, splat(TAYLOR[11]))
    value = fma(value, rest, splat(TAYLOR[10]))
    value = fma(value, rest, splat(TAYLOR[9]))
    value = fma(value, rest, splat(TAYLOR[8]))
    value = fma(value, rest, splat(TAYLOR[7]))
    value = fma(value, rest, splat(TAYLOR[6]))
    value = fma(value, rest, splat(TAYLOR[5]))
    value = fma(value, rest, splat(TAYLOR[4]))
    value = fma(value, rest, splat(TAYLOR[3]))
    value = fma(value, rest, splat(0.5))
    value = fma(value, rest, splat(1.0))
    value = fma(value, rest, splat(1.0))
    return multiply(value, power_of_two(shifted))
