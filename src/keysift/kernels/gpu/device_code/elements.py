"""Functions of numbers and rows: polynomials for cosine, sine and tanh, lengths of rows, angles from integers."""

import triton
import triton.language as tl


@triton.jit
def half_cosine(y):
    """cos(y) for |y| <= pi/2. A polynomial: tl.cos would reduce any argument, through local memory."""
    z = y * y
    c = -1.14707456e-11 * z + 2.08767570e-9
    c = c * z + -2.75573192e-7
    c = c * z + 2.48015873e-5
    c = c * z + -1.38888889e-3
    c = c * z + 4.16666667e-2
    c = c * z + -0.5
    return c * z + 1.0


@triton.jit
def half_sine(y):
    """sin(y) for |y| <= pi/2."""
    z = y * y
    s = 1.60590438e-10 * z + -2.50521084e-8
    s = s * z + 2.75573192e-6
    s = s * z + -1.98412698e-4
    s = s * z + 8.33333333e-3
    s = s * z + -1.66666667e-1
    return y * (s * z + 1.0)


@triton.jit
def half_cosine_f64(y):
    """cos(y) in fp64 for 0 <= y <= pi/2: the Taylor series up to y^22, whose rest is below 1e-19."""
    z = y * y
    c = tl.full([], -8.896791392450574e-22, tl.float64)  # -1/22!
    c = c * z + 4.110317623312165e-19
    c = c * z + -1.5619206968586225e-16
    c = c * z + 4.779477332387385e-14
    c = c * z + -1.1470745597729725e-11
    c = c * z + 2.08767569878681e-09
    c = c * z + -2.755731922398589e-07
    c = c * z + 2.48015873015873e-05
    c = c * z + -0.001388888888888889
    c = c * z + 0.041666666666666664
    c = c * z + -0.5
    return c * z + 1.0


@triton.jit
def turn_rate(window, w_th):
    """MiPE in turns per position, gamma(w) / (2 w), modulo one turn, as an integer in units of 2^-63 turns."""
    w = window.to(tl.float64)
    below = w < w_th
    w = tl.minimum(w, w_th)
    c = half_cosine_f64(1.5707963267948966 * (w / w_th))  # gamma = (1 + cos(pi w / w_th)) / 2 = c^2
    rate = tl.where(below, c * c / (2.0 * w), 0.0)
    return ((rate - tl.floor(rate)) * 9223372036854775808.0).to(tl.int64)


@triton.jit
def rotation(position, rate):
    """Cosine and sine of the angle at int64 positions. The product wraps, which drops whole turns: exact anywhere."""
    fraction = ((position * rate) >> 31).to(tl.int32)  # of a turn, in units of 2^-32, from -1/2 on
    y = fraction.to(tl.float32) * 7.314590396335798e-10  # pi 2^-32: half the angle
    c = half_cosine(y)
    s = half_sine(y)
    return (c - s) * (c + s), 2.0 * s * c


@triton.jit
def tanh_ratio(n):
    """tanh(n) / n for n >= 0: a Pade approximant below 1 (error 1e-10), exponentials from there on."""
    z = n * n
    top = 135135.0 + z * (17325.0 + z * (378.0 + z))
    bottom = 135135.0 + z * (62370.0 + z * (3150.0 + z * 28.0))
    e = tl.exp(-2.0 * n)
    return tl.where(n < 1.0, top / bottom, (1.0 - e) / ((1.0 + e) * tl.maximum(n, 1.0)))


@triton.jit
def tanh_slope(n):
    """(n / cosh(n)^2 - tanh(n)) / n^3 for n >= 0, without cancellation near 0."""
    z = n * n
    f = tanh_ratio(n)
    bottom = 135135.0 + z * (62370.0 + z * (3150.0 + z * 28.0))
    rest = (45045.0 + z * (2772.0 + z * 27.0)) / bottom  # (1 - f) / n^2
    return tl.where(n < 1.0, rest, (1.0 - f) / tl.maximum(z, 1.0)) - f * f


@triton.jit
def inverse_lengths(x):
    """1 / max(|x|, 1e-12) of each row, NaN if it has a non-finite element, and a power of two that brings it near 1.

    Squares of rows times this power neither overflow nor vanish.
    """
    largest = tl.max(tl.abs(x), 1)
    exponent = tl.minimum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 253 << 23)
    power = ((254 << 23) - exponent).to(tl.float32, bitcast=True)
    y = x * power[:, None]
    root = tl.sqrt_rn(tl.sum(y * y, 1))
    inverse = tl.where(root > 1e-12 * power, power / tl.where(root > 0.0, root, 1.0), 1e12)
    return inverse + tl.sum(x * 0.0, 1), power


@triton.jit
def unit_gradient(d, unit, inverse):
    """Gradient of rows x from that of x / |x|. Rows shorter than 1e-12, and rows with a NaN, get none."""
    inverse = tl.where(inverse < 1e12, inverse, 0.0)
    along = tl.sum(d * unit, 1)
    return (d - unit * along[:, None]) * inverse[:, None]


@triton.jit
def column(x, number, channel):
    """One column of a matrix, as a vector."""
    return tl.sum(tl.where(channel[None, :] == number, x, 0.0), 1)


@triton.jit
def with_first_columns(x, first, second, channel):
    """The matrix with other values in columns 0 and 1."""
    x = tl.where(channel[None, :] == 0, first[:, None], x)
    return tl.where(channel[None, :] == 1, second[:, None], x)
