// How the page writes numbers: as keysift's Python pages do.

/** Three digits, and honest about zero: "0" is exactly zero, the tiny and the huge are "1e-9". */
function number(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const power = Number(value.toExponential(2).split("e")[1]);
  if (power < -3 || power > 8) return value.toExponential(0).replace("+", "");
  const digits = Math.max(0, 2 - power);
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function signed(value) {
  return (value > 0 ? "+" : "") + number(value).replace("-", "−");
}

function count(value) {
  return value.toLocaleString("en-US");
}
