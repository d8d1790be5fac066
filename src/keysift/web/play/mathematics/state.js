// State of the page: keys with their cosines, a crowd of distractors, and every setting.
// The score of a key is its cosine c with the query. Mechanisms whose scores are cosines read c; all others read the
// logit x = c * sharpness. With |q| = |k| = sqrt(d), sharpness is sqrt(d) / T, or d / T if logits are not scaled.

const MAX_KEYS = 40;
const MAX_DISTRACTORS = 10000;
const NO_WINDOW = 1e9; // keys of the scores view have no positions

/** @type {PageData} data that Python embeds: mechanisms, presets and reference values */
let RECORD;

/** @type {(name: string) => Mechanism | undefined} */
function findMechanism(name) {
  return RECORD.mechanisms.find((known) => known.name === name);
}

/** @type {(name: string) => Mechanism} */
function mechanism(name) {
  const known = findMechanism(name);
  if (!known) throw new Error(`The page has no mechanism ${name}.`);
  return known;
}

/** @type {() => Mechanism[]} */
function playable() {
  return RECORD.mechanisms.filter(({ name }) => weightFunction(name));
}

/** @type {() => State} */
function initialState() {
  return {
    view: "scores",
    keys: [],
    crowd: 0,
    level: 0,
    temperature: 1,
    width: 4,
    scaled: true,
    dials: {},
    shown: ["softmax", "screening"],
    selected: "A",
    pinned: false,
    before: null,
    plane: initialPlane(),
    map: { layer: 0, head: 0, query: Number.MAX_SAFE_INTEGER }, // clipped to the last query
  };
}

/** @type {() => Plane} */
function initialPlane() {
  return {
    query: 60,
    second: 140,
    window: 12,
    rotate: true,
    keys: [
      { angle: 70, distance: 0, value: [0.9, 0.3] },
      { angle: 35, distance: 2, value: [-0.4, 0.8] },
      { angle: 150, distance: 5, value: [-0.8, -0.5] },
      { angle: 260, distance: 9, value: [0.4, -0.8] },
    ],
  };
}

/** @type {(name: string, cosine: number) => Key} */
function newKey(name, cosine) {
  return { name, cosine, second: 0, masked: false };
}

/** @type {(preset: Preset, state?: State) => State} */
function fromPreset(preset, state = initialState()) {
  /** @type {(cosines: number[]) => Key[]} */
  const named = (cosines) => cosines.map((cosine, j) => newKey(keyName(j), cosine));
  const reset = { ...state, level: 0, temperature: 1, width: 4, scaled: true, dials: {}, pinned: false, selected: "A" };
  const before = preset.before.length ? weightInputs({ ...reset, keys: named(preset.before), crowd: 0 }) : null;
  return { ...reset, keys: named(preset.cosines), crowd: preset.crowd, before };
}

/**
 * Everything the weights depend on; kept as `before` to find the weights that change.
 * @type {(state: WeightInputs) => WeightInputs}
 */
function weightInputs({ keys, crowd, level, temperature, width, scaled, dials }) {
  return { keys, crowd, level, temperature, width, scaled, dials };
}

/** @type {(j: number) => string} */
function keyName(j) {
  return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[j % 26] + (j < 26 ? "" : String(Math.floor(j / 26)));
}

/** @type {(keys: Key[]) => string} */
function freshName(keys) {
  let j = 0;
  while (keys.some((key) => key.name === keyName(j))) j++;
  return keyName(j);
}

/** @type {(state: Pick<WeightInputs, "temperature" | "width" | "scaled">) => number} */
function sharpness({ temperature, width, scaled }) {
  return (scaled ? Math.sqrt(width) : width) / temperature;
}

/**
 * Cosine of distractor j, spread evenly over level +- 0.2 by the golden ratio, as Python's `distractors` does.
 * @type {(j: number, level: number) => number}
 */
function distractor(j, level) {
  return level + 0.2 * (2 * (((j + 1) * 0.6180339887498949) % 1) - 1);
}

/** @type {(crowd: number, level: number) => Float64Array} */
const distractorCosines = remember((/** @type {number} */ crowd, /** @type {number} */ level) =>
  Float64Array.from({ length: crowd }, (_, j) => Math.max(-1, Math.min(1, distractor(j, level)))),
);

/**
 * Cosines of the keys, then of the distractors.
 * @type {(state: WeightInputs) => Float64Array}
 */
function allCosines({ keys, crowd, level }) {
  const all = new Float64Array(keys.length + crowd);
  keys.forEach((key, j) => (all[j] = key.cosine));
  all.set(distractorCosines(crowd, level), keys.length);
  return all;
}

/**
 * Cache the last few results: between two frames of a drag most calls repeat.
 * @template {any[]} A
 * @template R
 * @param {(...inputs: A) => R} compute
 * @param {number} [most]
 * @returns {(...inputs: A) => R}
 */
function remember(compute, most = 16) {
  /** @type {{ inputs: A, result: R }[]} */
  const entries = [];
  return (...inputs) => {
    let entry = entries.find((known) => known.inputs.every((value, j) => value === inputs[j]));
    if (!entry) {
      entry = { inputs, result: compute(...inputs) };
      entries.unshift(entry);
      entries.length = Math.min(entries.length, most);
    }
    return entry.result;
  };
}

/**
 * Weights before the current gesture; they stay the same while it lasts.
 * @type {(name: string, before: WeightInputs) => Float64Array}
 */
const weightsBefore = remember((/** @type {string} */ name, /** @type {WeightInputs} */ before) => computeWeights(name, allCosines(before), before), 64);

/** @type {(state: WeightInputs, name: string, of: Dial) => number} */
function dialValue(state, name, of) {
  return state.dials[`${name}.${of.name}`] ?? of.default;
}

/**
 * Scores in the units the mechanism reads: cosines or logits.
 * @type {(about: Mechanism, cosines: Float64Array, state: WeightInputs) => Float64Array}
 */
function readScores(about, cosines, state) {
  const factor = sharpness(state);
  return about.cosine ? cosines : mapRow(cosines, (c) => factor * c);
}

/** @type {(name: string, cosines: Float64Array, state: WeightInputs) => Float64Array} */
function computeWeights(name, cosines, state) {
  const about = mechanism(name);
  const n = cosines.length;
  const keep = new Uint8Array(n).fill(1);
  const second = new Float64Array(n);
  state.keys.forEach((key, j) => {
    keep[j] = key.masked ? 0 : 1;
    second[j] = key.second * (about.cosine ? 1 : sharpness(state));
  });
  const scalars = Object.fromEntries(about.dials.map((of) => [of.name, dialValue(state, name, of)]));
  const row = { keep, second, distance: new Float64Array(n), effective_window: NO_WINDOW, ...scalars };
  const weigh = weightFunction(name);
  if (!weigh) throw new Error(`The page cannot compute ${name}.`);
  return weigh(readScores(about, cosines, state), row);
}

/**
 * Whether the mechanism reads the same score of a key with the same settings in both states.
 * @type {(about: Mechanism, before: WeightInputs, after: WeightInputs, was: Key, is: Key) => boolean}
 */
function sameScore(about, before, after, was, is) {
  const factor = about.cosine ? 1 : sharpness(before) / sharpness(after);
  const dials = about.dials.every((of) => dialValue(before, about.name, of) === dialValue(after, about.name, of));
  const second = about.maps < 2 || was.second === is.second;
  return dials && second && factor === 1 && was.cosine === is.cosine && was.masked === is.masked;
}

/**
 * Weight changes of keys whose score stayed the same (null for all others), and the number of such distractors.
 * @type {(name: string, state: State, weights: Float64Array) => Changes}
 */
function weightChanges(name, state, weights) {
  /** @type {Changes} */
  const changes = { keys: state.keys.map(() => null), crowd: 0, before: state.keys.map(() => null) };
  const before = state.before;
  if (!before) return changes;
  const about = mechanism(name);
  const old = weightsBefore(name, before);
  state.keys.forEach((key, j) => {
    const then = before.keys.findIndex((other) => other.name === key.name);
    if (then < 0) return;
    changes.before[j] = old[then];
    const by = weights[j] - old[then];
    const same = sameScore(about, before, state, before.keys[then], key);
    if (same && Math.abs(by) > 1e-9) changes.keys[j] = by;
  });
  const anyKey = newKey("", 0);
  if (before.level === state.level && sameScore(about, before, state, anyKey, anyKey)) {
    for (let j = 0; j < Math.min(state.crowd, before.crowd); j++) {
      const by = weights[state.keys.length + j] - old[before.keys.length + j];
      if (Math.abs(by) > 1e-9) changes.crowd++;
    }
  }
  return changes;
}
