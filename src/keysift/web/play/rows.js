// Pieces several mechanisms are made of. A row is a Float64Array of scores; `keep` says which keys take part.
// Every function answers for a row that keeps nothing: zeros, never NaN.

function map(x, f) {
  const out = new Float64Array(x.length);
  for (let j = 0; j < x.length; j++) out[j] = f(x[j], j);
  return out;
}

function total(w) {
  let sum = 0;
  for (let j = 0; j < w.length; j++) sum += w[j];
  return sum;
}

function seen(keep) {
  let count = 0;
  for (let j = 0; j < keep.length; j++) count += keep[j];
  return count;
}

function visibleMax(x, keep) {
  let top = -Infinity;
  for (let j = 0; j < x.length; j++) if (keep[j] && x[j] > top) top = x[j];
  return top === -Infinity ? 0 : top;
}

/** p / (sum p + also), and 0 where the whole is 0. */
function share(p, also = 0) {
  const whole = total(p) + also;
  return map(p, (v) => (whole > 0 ? v / whole : 0));
}

function softmax(x, keep) {
  const top = visibleMax(x, keep);
  return share(map(x, (v, j) => (keep[j] ? Math.exp(v - top) : 0)));
}

function kept(x, keep, f) {
  return map(x, (v, j) => (keep[j] ? f(v, j) : 0));
}

/** The window: (1 + cos(pi d / w)) / 2 for 0 <= d < w, else 0. */
function fade(distance, window) {
  return distance >= 0 && distance < window ? (1 + Math.cos((Math.PI * distance) / window)) / 2 : 0;
}

/** Exactly zero where the cosine is at most 1 - r, one where it is 1. */
function trim(cosine, acceptance) {
  const near = Math.max(1 - (1 - cosine) / acceptance, 0);
  return near * near;
}

function sigmoid(x) {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}
