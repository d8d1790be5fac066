// Every mechanism of keysift's registry, from a row of scores to a row of weights, written from the formulas of
// docs/mechanisms. The page checks them against Python's own numbers when it opens (check.js).
// A row is { keep, second, distance } and the mechanism's scalars.

function difference(x, row) {
  const b = softmax(row.second, row.keep);
  return map(softmax(x, row.keep), (a, j) => a - row.lam * b[j]);
}

/** a H(a - lam b): what stays of the first map where it beats the second. */
function gated(x, row) {
  const beyond = difference(x, row);
  return map(softmax(x, row.keep), (a, j) => (beyond[j] > 0 ? a : 0));
}

/** exp(-m) (exp(x) - 1) with m = max(max x, 0), so that nothing overflows. */
function grown(x, keep) {
  const m = Math.max(visibleMax(x, keep), 0);
  const value = (v) => (v > 0 ? Math.exp(v - m) * -Math.expm1(-v) : Math.exp(-m) * Math.expm1(v));
  return { m, values: kept(x, keep, value) };
}

const positive = (v) => Math.max(v, 0);

function softpick(x, row) {
  const { m, values } = grown(x, row.keep);
  const whole = total(map(values, Math.abs)) + 1e-8 * Math.exp(-m);
  return map(values, (v) => positive(v) / Math.max(whole, 2 ** -1022));
}

function sink(x, keep, logit) {
  const m = Math.max(visibleMax(x, keep), logit);
  return share(
    kept(x, keep, (v) => Math.exp(v - m)),
    Math.exp(logit - m),
  );
}

const atLeastOne = (keep) => Math.max(seen(keep), 1);
const logSeen = (keep) => Math.log(atLeastOne(keep));
const sharper = (x, keep, factor) =>
  softmax(
    map(x, (v) => factor * v),
    keep,
  );

const WEIGH = {
  softmax: (x, row) => softmax(x, row.keep),
  screening: (x, row) => kept(x, row.keep, (v, j) => trim(v, row.acceptance) * fade(row.distance[j], row.reach)),
  differential_v1: difference,
  differential_v2: difference,
  rectified_difference: (x, row) => map(difference(x, row), positive),
  rectified_difference_min: (x, row) => map(difference(x, row), (v) => Math.min(v, 0)),
  heaviside_literal: (x, row) => {
    const beyond = difference(x, row);
    return map(softmax(x, row.keep), (a, j) => a - (beyond[j] > 0 ? row.lam : 0));
  },
  heaviside_constant: (x, row) => kept(softmax(x, row.keep), row.keep, (a) => a - row.lam),
  heaviside_gate: gated,
  heaviside_gate_renormalised: (x, row) => share(gated(x, row)),
  softmax_minus_constant: (x, row) => kept(softmax(x, row.keep), row.keep, (a) => row.gain * (a - row.c)),
  softmax_minus_uniform: (x, row) => {
    const each = row.lam / atLeastOne(row.keep);
    return kept(softmax(x, row.keep), row.keep, (a) => a - each);
  },
  relu_exp: (x, row) => kept(x, row.keep, (v) => Math.expm1(positive(v))),
  relu_exp_normalised: (x, row) => share(map(grown(x, row.keep).values, positive)),
  softpick,
  sparsemax: (x, row) => sparsemax(x, row.keep),
  entmax15: (x, row) => entmax15(x, row.keep),
  alpha_entmax: (x, row) => alphaEntmax(x, row.keep, row.alpha),
  softmax1: (x, row) => sink(x, row.keep, 0),
  softmax_sink: (x, row) => sink(x, row.keep, row.sink),
  sigmoid: (x, row) => kept(x, row.keep, (v) => sigmoid(v + row.bias)),
  sigmoid_visible: (x, row) => {
    const bias = -Math.log(atLeastOne(row.keep));
    return kept(x, row.keep, (v) => sigmoid(v + bias));
  },
  relu: (x, row) => kept(x, row.keep, (v) => positive(v) / row.length),
  relu_squared: (x, row) => kept(x, row.keep, (v) => positive(v) ** 2 / row.length),
  relu_visible: (x, row) => {
    const n = atLeastOne(row.keep);
    return kept(x, row.keep, (v) => positive(v) / n);
  },
  rela: (x, row) => kept(x, row.keep, positive),
  ssmax: (x, row) => sharper(x, row.keep, row.sharpness * logSeen(row.keep)),
  selective_temperature: (x, row) => sharper(x, row.keep, 1 + row.token + row.growth * logSeen(row.keep)),
};

/** A gate works on values or outputs, so `name+gate` weighs as `name` does. */
function weigher(name) {
  return WEIGH[name.split("+")[0]];
}

/** What a row of weights adds up to. Entropy (in nats) is that of the shares |w| / sum |w|. */
function summary(w) {
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
