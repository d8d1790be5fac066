// Functions that several mechanisms share. A row is a Float64Array of scores; `keep` marks the visible keys.
// A row without visible keys gives zeros, never NaN.

/** @type {(x: Numbers, f: (value: number, j: number) => number) => Float64Array} */
function mapRow(x, f) {
  const out = new Float64Array(x.length);
  for (let j = 0; j < x.length; j++) out[j] = f(x[j], j);
  return out;
}

/** @type {(w: Numbers) => number} */
function sum(w) {
  let result = 0;
  for (let j = 0; j < w.length; j++) result += w[j];
  return result;
}

/** @type {(keep: Mask) => number} */
function countVisible(keep) {
  let count = 0;
  for (let j = 0; j < keep.length; j++) count += keep[j];
  return count;
}

/** @type {(x: Float64Array, keep: Mask) => number} */
function visibleMax(x, keep) {
  let top = -Infinity;
  for (let j = 0; j < x.length; j++) if (keep[j] && x[j] > top) top = x[j];
  return top === -Infinity ? 0 : top;
}

/**
 * p / (sum p + extra), and 0 where that sum is 0.
 * @type {(p: Float64Array, extra?: number) => Float64Array}
 */
function normalise(p, extra = 0) {
  const total = sum(p) + extra;
  return mapRow(p, (v) => (total > 0 ? v / total : 0));
}

/** @type {(x: Float64Array, keep: Mask) => Float64Array} */
function softmax(x, keep) {
  const top = visibleMax(x, keep);
  return normalise(mapRow(x, (v, j) => (keep[j] ? Math.exp(v - top) : 0)));
}

/** @type {(x: Float64Array, keep: Mask, f: (value: number, j: number) => number) => Float64Array} */
function mapVisible(x, keep, f) {
  return mapRow(x, (v, j) => (keep[j] ? f(v, j) : 0));
}

/**
 * Weight of the window: (1 + cos(pi d / w)) / 2 for 0 <= d < w, else 0.
 * @type {(distance: number, window: number) => number}
 */
function fade(distance, window) {
  return distance >= 0 && distance < window ? (1 + Math.cos((Math.PI * distance) / window)) / 2 : 0;
}

/**
 * Trimmed relevance: exactly zero for cosines of at most 1 - r, one for a cosine of 1.
 * @type {(cosine: number, acceptance: number) => number}
 */
function trim(cosine, acceptance) {
  const near = Math.max(1 - (1 - cosine) / acceptance, 0);
  return near * near;
}

/** @type {(x: number) => number} */
function sigmoid(x) {
  return x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x));
}
