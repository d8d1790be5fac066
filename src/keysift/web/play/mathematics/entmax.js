// Sparsemax and entmax: shift the scores so that the visible maximum is 0, then find the threshold tau in [-1, 0).

/**
 * Hidden keys get -2, which is below every tau.
 * @type {(x: Float64Array, keep: Mask, factor: number) => Float64Array}
 */
function shiftScores(x, keep, factor) {
  const max = visibleMax(x, keep);
  return mapRow(x, (v, j) => (keep[j] ? factor * (v - max) : -2));
}

/** @type {(z: Float64Array) => Float64Array} */
function sortDescending(z) {
  return Float64Array.from(z).sort().reverse();
}

/**
 * The support is the longest prefix of the sorted scores z with 1 + k z_k > z_1 + ... + z_k.
 * @type {(x: Float64Array, keep: Mask) => Float64Array}
 */
function sparsemax(x, keep) {
  const z = shiftScores(x, keep, 1);
  const sorted = sortDescending(z);
  let sum = 0,
    tau = 0;
  for (let k = 1; k <= sorted.length; k++) {
    sum += sorted[k - 1];
    if (1 + k * sorted[k - 1] > sum) tau = (sum - 1) / k;
  }
  return mapVisible(z, keep, (v) => Math.max(v - tau, 0));
}

/**
 * Each prefix of the sorted scores has a tau for which its weights sum to 1. The support is the longest prefix whose
 * scores are all at least its tau.
 * @type {(x: Float64Array, keep: Mask) => Float64Array}
 */
function entmax15(x, keep) {
  const z = shiftScores(x, keep, 0.5);
  const sorted = sortDescending(z);
  let sum = 0,
    squares = 0,
    tau = 0;
  for (let k = 1; k <= sorted.length; k++) {
    sum += sorted[k - 1];
    squares += sorted[k - 1] * sorted[k - 1];
    const mean = sum / k;
    const spread = k * (squares / k - mean * mean);
    const candidate = mean - Math.sqrt(Math.max((1 - spread) / k, 0));
    if (candidate <= sorted[k - 1]) tau = candidate;
  }
  return mapVisible(z, keep, (v) => Math.max(v - tau, 0) ** 2);
}

/**
 * For alpha in (1, 2]. The sum of the weights is convex and decreasing in tau, so Newton's method from tau = -1 never
 * overshoots.
 * @type {(x: Float64Array, keep: Mask, alpha: number) => Float64Array}
 */
function alphaEntmax(x, keep, alpha) {
  const z = shiftScores(x, keep, alpha - 1);
  const power = 1 / (alpha - 1);
  let tau = -1;
  for (let step = 0; step < 100; step++) {
    let sum = 0,
      slope = 0;
    for (let j = 0; j < z.length; j++) {
      if (z[j] <= tau) continue;
      const p = (z[j] - tau) ** power;
      sum += p;
      slope += (power * p) / (z[j] - tau);
    }
    const next = tau + (sum - 1) / slope;
    if (!(next > tau)) break;
    tau = next;
  }
  return normalise(mapVisible(z, keep, (v) => (v > tau ? (v - tau) ** power : 0)));
}
