// Number formats, the same as in keysift.core.number.

/**
 * Three significant digits. "0" means exactly zero; tiny and huge values use an exponent ("1e-9").
 * @type {(value: number) => string}
 */
function formatNumber(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const power = Number(value.toExponential(2).split("e")[1]);
  if (power < -3 || power > 8) return value.toExponential(0).replace("+", "");
  const digits = Math.max(0, 2 - power);
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** @type {(value: number) => string} */
function formatSigned(value) {
  return (value > 0 ? "+" : "") + formatNumber(value).replace("-", "−");
}

/** @type {(value: number) => string} */
function formatCount(value) {
  return value.toLocaleString("en-US");
}
