// Sparse maps onto the simplex: scores are shifted so that the visible maximum is 0, then a threshold tau is found.

function shifted(x, keep, factor) {
  const top = visibleMax(x, keep);
  return map(x, (v, j) => (keep[j] ? factor * (v - top) : -2));
}

function descending(z) {
  return Float64Array.from(z).sort().reverse();
}

/** The support is the longest prefix of the sorted scores with 1 + k z_(k) > the sum of the first k. */
function sparsemax(x, keep) {
  const z = shifted(x, keep, 1);
  const top = descending(z);
  let sum = 0,
    tau = 0;
  for (let k = 1; k <= top.length; k++) {
    sum += top[k - 1];
    if (1 + k * top[k - 1] > sum) tau = (sum - 1) / k;
  }
  return kept(z, keep, (v) => Math.max(v - tau, 0));
}

/** For each prefix the tau that would normalise it; the support is the longest prefix consistent with its own. */
function entmax15(x, keep) {
  const z = shifted(x, keep, 0.5);
  const top = descending(z);
  let sum = 0,
    squares = 0,
    tau = 0;
  for (let k = 1; k <= top.length; k++) {
    sum += top[k - 1];
    squares += top[k - 1] * top[k - 1];
    const mean = sum / k;
    const spread = k * (squares / k - mean * mean);
    const candidate = mean - Math.sqrt(Math.max((1 - spread) / k, 0));
    if (candidate <= top[k - 1]) tau = candidate;
  }
  return kept(z, keep, (v) => Math.max(v - tau, 0) ** 2);
}

/** For any alpha in (1, 2]: the sum is convex and falling in tau, so Newton's steps from the left never overshoot. */
function alphaEntmax(x, keep, alpha) {
  const z = shifted(x, keep, alpha - 1);
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
  return share(kept(z, keep, (v) => (v > tau ? (v - tau) ** power : 0)));
}
