// How the page writes numbers: as keysift's Python pages do.

/** Short, and honest about zero: "0" is exactly zero, ".000" is not. */
function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  const text = size < 10 ? value.toFixed(3) : value.toFixed(1);
  return size < 1 ? text.replace(/^(-?)0\./, "$1.") : text;
}

function signed(value) {
  return (value > 0 ? "+" : "") + number(value).replace("-", "−");
}

function count(value) {
  return value.toLocaleString("en-US");
}
