"""Functions of numbers for kernels: float64 to the last digit or two without a library's branches, float32 roughly.

APPROX: take the device's own approximations, which the interpreter has none of.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def reciprocal(x, APPROX: tl.constexpr):
    """1 / x to the last digit or two: a seed of some 20 digits of base two, refined once to the third order."""
    if APPROX:
        seed = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )
        error = 1.0 - x * seed
        return seed + seed * (error + error * error)
    else:
        return 1.0 / x


@triton.jit
def inverse_weight(x, FEW: tl.constexpr, APPROX: tl.constexpr):
    """1 / x to the last digit or two, or to 40 digits of base two where few are asked for."""
    if APPROX and FEW:
        seed = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1
        )
        return seed + seed * (1.0 - x * seed)
    else:
        return reciprocal(x, APPROX)


@triton.jit
def decay(x):
    """e^-x for x >= 0, to the last digit or two: without the branches of a library, and zero beyond 708.7."""
    kept = tl.where(x > 709.4, 709.4, x)  # whose power of two is the first that is taken for zero
    # no fraction is left of such a sum, whose last digits in base two are an exponent of float64
    lifted = 6755399441056767.0 - kept * 1.4426950408889634
    whole = lifted - 6755399441056767.0
    z = -kept - whole * 6.93147180369123816490e-01 - whole * 1.90821492927058770002e-10
    # near inverse factorials, of least error where |z| is below half the logarithm of two
    e = 2.755751454588244e-06 + z * (2.763090348817311e-07 + z * 2.502232253650299e-08)
    e = 0.001388888894591638 + z * (0.00019841269589115497 + z * (2.4801491039099165e-05 + z * e))
    e = 0.16666666666666477 + z * (0.041666666666519754 + z * (0.008333333333455043 + z * e))
    e = 1.0 + z * (1.0 + z * (0.5000000000000012 + z * e))
    return e * (lifted.to(tl.int64, bitcast=True) << 52).to(tl.float64, bitcast=True)


@triton.jit
def log(x, APPROX: tl.constexpr):
    """The logarithm of an ordinary positive number, to the last digit or two: without the branches of a library."""
    bits = x.to(tl.int64, bitcast=True)
    power = (bits - 0x3FE6A09E00000000) >> 52  # so that what is left is between the roots of 1/2 and 2
    left = (bits - (power << 52)).to(tl.float64, bitcast=True)
    ratio = 2.0 * (left - 1.0) * reciprocal(left + 1.0, APPROX)
    z = ratio * ratio
    whole = ratio + power.to(tl.int32).to(tl.float64) * 0.6931471805599453
    # the series of the inverse hyperbolic tangent, in pairs that do not wait for each other
    a = 0.08333333333333331 + z * 0.012500000000004514
    b = 0.0022321428567665586 + z * 0.00043402779293201976
    c = 8.877807196497797e-05 + z * 1.8784407018835667e-05
    d = 4.036488625710656e-06 + z * 1.0263276909458365e-06
    y = z * z
    return whole + ratio * z * ((a + y * b) + (y * y) * (c + y * d))


@triton.jit
def circle_at(turns):
    """Cosine and sine of turns from 0 to 1, to rounding: Taylor's series around the nearest quarter."""
    # no fraction is left of such a sum, whose last digits in base two are the quarter
    lifted = 6755399441055744.0 + 4.0 * turns
    quarter = lifted.to(tl.int64, bitcast=True).to(tl.int32)
    z = 6.283185307179586 * (turns - 0.25 * (lifted - 6755399441055744.0))
    y = z * z
    # coefficients are inverse factorials, of which 1/15! and 1/16! are the last that tell
    s = 1.605904383682161e-10 - y * 7.647163731819816e-13
    s = 2.7557319223985893e-06 - y * (2.505210838544172e-08 - y * s)
    s = 0.16666666666666666 - y * (0.008333333333333333 - y * (0.0001984126984126984 - y * s))
    c = 2.08767569878681e-09 - y * (1.1470745597729725e-11 - y * 4.779477332387385e-14)
    c = 2.48015873015873e-05 - y * (2.755731922398589e-07 - y * c)
    c = 0.5 - y * (0.041666666666666664 - y * (0.001388888888888889 - y * c))
    cos, sin = 1.0 - y * c, z - z * y * s
    odd, beyond = (quarter & 1) == 1, (quarter & 2) == 2
    real, imaginary = tl.where(odd, -sin, cos), tl.where(odd, cos, sin)
    return tl.where(beyond, -real, real), tl.where(beyond, -imaginary, imaginary)


@triton.jit
def turned_by(cos, sin, by_cos, by_sin):
    return cos * by_cos - sin * by_sin, sin * by_cos + cos * by_sin


@triton.jit
def quick_inverse(x, APPROX: tl.constexpr):
    """1 / x in float32, to about six digits."""
    if APPROX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def quick_power(x, APPROX: tl.constexpr):
    """2^x in float32, to about six digits; zero and infinity are reached at +-127."""
    if APPROX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(tl.minimum(x, 127.0))


@triton.jit
def quick_log(x, APPROX: tl.constexpr):
    """The natural logarithm in float32, to about six digits."""
    if APPROX:
        binary = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.6931471805599453 * binary
    else:
        return tl.log(x)
