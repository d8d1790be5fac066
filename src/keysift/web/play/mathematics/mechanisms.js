// Every registered mechanism as a function from scores to weights, written from the formulas in docs/mechanisms.
// When the page opens, check.js compares them with the weights that Python computed.

/** @type {WeightFunction} */
function difference(x, row) {
  const b = softmax(row.second, row.keep);
  return mapRow(softmax(x, row.keep), (a, j) => a - row.lam * b[j]);
}

/**
 * a H(a - lam b): the first map where it exceeds the second, else 0.
 * @type {WeightFunction}
 */
function gated(x, row) {
  const excess = difference(x, row);
  return mapRow(softmax(x, row.keep), (a, j) => (excess[j] > 0 ? a : 0));
}

/**
 * exp(-m) (exp(x) - 1) with m = max(max x, 0), which cannot overflow.
 * @type {(x: Float64Array, keep: Mask) => { m: number, values: Float64Array }}
 */
function scaledExpm1(x, keep) {
  const m = Math.max(visibleMax(x, keep), 0);
  /** @param {number} v */
  const value = (v) => (v > 0 ? Math.exp(v - m) * -Math.expm1(-v) : Math.exp(-m) * Math.expm1(v));
  return { m, values: mapVisible(x, keep, value) };
}

/** @type {(v: number) => number} */
const relu = (v) => Math.max(v, 0);

/** @type {WeightFunction} */
function softpick(x, row) {
  const { m, values } = scaledExpm1(x, row.keep);
  const total = sum(mapRow(values, Math.abs)) + 1e-8 * Math.exp(-m);
  return mapRow(values, (v) => relu(v) / Math.max(total, 2 ** -1022));
}

/** @type {(x: Float64Array, keep: Mask, logit: number) => Float64Array} */
function softmaxWithSink(x, keep, logit) {
  const m = Math.max(visibleMax(x, keep), logit);
  return normalise(
    mapVisible(x, keep, (v) => Math.exp(v - m)),
    Math.exp(logit - m),
  );
}

/**
 * Each key takes the share sigmoid(x) of what newer keys have left; keys come oldest first. With `own`, the last key is the
 * query's own, which takes no share and gets the rest.
 * @type {(x: Float64Array, keep: Mask, own?: boolean) => Float64Array}
 */
function stickBreaking(x, keep, own = false) {
  const w = new Float64Array(x.length);
  const last = x.length - (own ? 2 : 1);
  let logLeft = 0;
  for (let j = last; j >= 0; j--) {
    if (!keep[j]) continue;
    w[j] = Math.exp(logLeft - softplus(-x[j]));
    logLeft -= softplus(x[j]);
  }
  if (own && keep[last + 1]) w[last + 1] = Math.exp(logLeft);
  return w;
}

/** @type {(v: number) => number} */
const softplus = (v) => Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v)));

/** @type {(keep: Mask) => number} */
const visibleKeys = (keep) => Math.max(countVisible(keep), 1);
/** @type {(keep: Mask) => number} */
const logVisibleKeys = (keep) => Math.log(visibleKeys(keep));
/** @type {(x: Float64Array, keep: Mask, factor: number) => Float64Array} */
const scaledSoftmax = (x, keep, factor) =>
  softmax(
    mapRow(x, (v) => factor * v),
    keep,
  );

/**
 * max(0, softmax(x) - level): the rectified softmaxes.
 * @type {(x: Float64Array, keep: Mask, level: number) => Float64Array}
 */
const rectifiedSoftmax = (x, keep, level) => mapVisible(softmax(x, keep), keep, (a) => relu(a - level));

/**
 * max(0, cosine - t)^2 with the threshold t of threshold attention.
 * @type {WeightFunction}
 */
function squaredExcess(x, row) {
  const t = row.beta * Math.sqrt((2 * logVisibleKeys(row.keep)) / row.width);
  return mapVisible(x, row.keep, (v) => relu(v - t) ** 2);
}

/** @type {WeightFunction} */
function lssar(x, row) {
  const n = visibleKeys(row.keep);
  const factor = Math.log(row.width) * Math.log(n);
  /** @param {number} z */
  const softplus = (z) => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));
  const u = mapVisible(x, row.keep, (v) => softplus(factor * v));
  // Differences to the maximum, so that equal numbers are equal to their mean.
  const top = n > 3 ? visibleMax(u, row.keep) : 0;
  const above = mapVisible(u, row.keep, (v) => v - top);
  const mean = n > 3 ? sum(above) / n : 0;
  const excess = mapVisible(above, row.keep, (v) => relu(v - mean));
  const largest = Math.max(...excess) || 1;
  return normalise(mapRow(excess, (v) => (v / largest) ** row.power));
}

/** @type {Record<string, WeightFunction>} */
const WEIGH = {
  softmax: (x, row) => softmax(x, row.keep),
  screening: (x, row) => mapVisible(x, row.keep, (v, j) => trim(v, row.acceptance) * fade(row.distance[j], row.effective_window)),
  differential_v1: difference,
  differential_v2: difference,
  rectified_difference: (x, row) => mapRow(difference(x, row), relu),
  rectified_difference_min: (x, row) => mapRow(difference(x, row), (v) => Math.min(v, 0)),
  heaviside_literal: (x, row) => {
    const excess = difference(x, row);
    return mapRow(softmax(x, row.keep), (a, j) => a - (excess[j] > 0 ? row.lam : 0));
  },
  heaviside_constant: (x, row) => mapVisible(softmax(x, row.keep), row.keep, (a) => a - row.lam),
  heaviside_gate: gated,
  heaviside_gate_renormalised: (x, row) => normalise(gated(x, row)),
  softmax_minus_constant: (x, row) => mapVisible(softmax(x, row.keep), row.keep, (a) => row.gain * (a - row.c)),
  softmax_minus_uniform: (x, row) => {
    const each = row.lam / visibleKeys(row.keep);
    return mapVisible(softmax(x, row.keep), row.keep, (a) => a - each);
  },
  elastic_softmax: (x, row) => rectifiedSoftmax(x, row.keep, -row.tau / visibleKeys(row.keep)),
  clipped_softmax: (x, row) => mapRow(rectifiedSoftmax(x, row.keep, -row.gamma / (1 - row.gamma)), (w) => (1 - row.gamma) * w),
  relu_exp: (x, row) => mapVisible(x, row.keep, (v) => Math.expm1(relu(v))),
  relu_exp_normalised: (x, row) => normalise(mapRow(scaledExpm1(x, row.keep).values, relu)),
  softpick,
  sparsemax: (x, row) => sparsemax(x, row.keep),
  entmax15: (x, row) => entmax15(x, row.keep),
  alpha_entmax: (x, row) => alphaEntmax(x, row.keep, row.alpha),
  asentmax: (x, row) => {
    const factor = 1 + row.strength * Math.log(visibleKeys(row.keep) + 1) ** row.growth;
    return entmax15(
      mapRow(x, (v) => factor * v),
      row.keep,
    );
  },
  softmax1: (x, row) => softmaxWithSink(x, row.keep, 0),
  softmax_sink: (x, row) => softmaxWithSink(x, row.keep, row.sink),
  null_value: (x, row) => softmaxWithSink(x, row.keep, row.null_logit),
  sigmoid: (x, row) => mapVisible(x, row.keep, (v) => sigmoid(v + row.bias)),
  sigmoid_visible: (x, row) => {
    const bias = -Math.log(visibleKeys(row.keep));
    return mapVisible(x, row.keep, (v) => sigmoid(v + bias));
  },
  relu: (x, row) => mapVisible(x, row.keep, (v) => relu(v) / row.length),
  relu_squared: (x, row) => mapVisible(x, row.keep, (v) => relu(v) ** 2 / row.length),
  relu_visible: (x, row) => {
    const n = visibleKeys(row.keep);
    return mapVisible(x, row.keep, (v) => relu(v) / n);
  },
  rela: (x, row) => mapVisible(x, row.keep, relu),
  tra: squaredExcess,
  tda: (x, row) => {
    const second = squaredExcess(row.second, row);
    return mapRow(squaredExcess(x, row), (a, j) => a - row.lam * second[j]);
  },
  lssar,
  ssmax: (x, row) => scaledSoftmax(x, row.keep, row.sharpness * logVisibleKeys(row.keep)),
  forgetting: (x, row) => {
    let newer = countVisible(row.keep);
    return softmax(
      mapVisible(x, row.keep, (v) => v + --newer * row.log_forget),
      row.keep,
    );
  },
  stick_breaking: (x, row) => stickBreaking(x, row.keep),
  stick_breaking_own_key: (x, row) => stickBreaking(x, row.keep),
  stick_breaking_learned: (x, row) => stickBreaking(x, row.keep),
  stick_breaking_rest: (x, row) => stickBreaking(x, row.keep, true),
  selective_temperature: (x, row) => scaledSoftmax(x, row.keep, 1 + row.token + row.growth * logVisibleKeys(row.keep)),
};

/**
 * A gate acts on values or outputs, so `name+gate` has the weights of `name`.
 * @type {(name: string) => WeightFunction | undefined}
 */
function weightFunction(name) {
  return WEIGH[name.split("+")[0]];
}

/**
 * Total mass, number of non-zero weights, and entropy in nats of the shares |w| / sum |w|.
 * @type {(w: Float64Array) => Summary}
 */
function rowSummary(w) {
  let mass = 0,
    size = 0,
    accepted = 0,
    entropy = 0;
  for (let j = 0; j < w.length; j++) {
    mass += w[j];
    size += Math.abs(w[j]);
    if (w[j] !== 0) accepted++;
  }
  for (let j = 0; j < w.length && size > 0; j++) {
    const p = Math.abs(w[j]) / size;
    if (p > 0) entropy -= p * Math.log(p);
  }
  return { mass, accepted, entropy };
}
