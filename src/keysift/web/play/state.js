// What the page shows, as one plain object: keys with their cosines, a crowd of distractors, and every setting.
// In this page a key's score is its cosine c with the query. Mechanisms whose scores are cosines read c itself; all
// others read the logit x = c * sharpness, with |q| = |k| = sqrt(d): sharpness = sqrt(d) / T, or d / T unscaled.

const MOST_KEYS = 40;
const MOST_DISTRACTORS = 10000;
const NO_WINDOW = 1e9; // keys of the scores view have no positions

let RECORD = null; // what Python wrote into the page: mechanisms, presets, golden numbers

function mechanism(name) {
  return RECORD.mechanisms.find((known) => known.name === name);
}

function playable() {
  return RECORD.mechanisms.filter(({ name }) => weigher(name));
}

function startState() {
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
    plane: startPlane(),
    map: { layer: 0, head: 0, query: 0 },
  };
}

function startPlane() {
  return {
    query: 60,
    second: 140,
    window: 12,
    turning: true,
    keys: [
      { angle: 70, distance: 0, value: [0.9, 0.3] },
      { angle: 35, distance: 2, value: [-0.4, 0.8] },
      { angle: 150, distance: 5, value: [-0.8, -0.5] },
      { angle: 260, distance: 9, value: [0.4, -0.8] },
    ],
  };
}

function keyOf(name, cosine) {
  return { name, cosine, second: 0, masked: false };
}

function fromPreset(preset, state = startState()) {
  const named = (cosines) => cosines.map((cosine, j) => keyOf(letter(j), cosine));
  const rest = { ...state, level: 0, temperature: 1, width: 4, scaled: true, dials: {}, pinned: false, selected: "A" };
  const before = preset.before.length ? partOf({ ...rest, keys: named(preset.before), crowd: 0 }) : null;
  return { ...rest, keys: named(preset.cosines), crowd: preset.crowd, before };
}

/** What weights depend on; kept as `before` to tell which of them moved. */
function partOf({ keys, crowd, level, temperature, width, scaled, dials }) {
  return { keys, crowd, level, temperature, width, scaled, dials };
}

function letter(j) {
  return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[j % 26] + (j < 26 ? "" : String(Math.floor(j / 26)));
}

function freshName(keys) {
  for (let j = 0; ; j++) if (!keys.some((key) => key.name === letter(j))) return letter(j);
}

function sharpness({ temperature, width, scaled }) {
  return (scaled ? Math.sqrt(width) : width) / temperature;
}

/** Evenly spread over level +- 0.2 by the golden ratio; Python's `distractors` makes the same numbers. */
function distractor(j, level) {
  return level + 0.2 * (2 * (((j + 1) * 0.6180339887498949) % 1) - 1);
}

const crowdOf = latest((crowd, level) =>
  Float64Array.from({ length: crowd }, (_, j) => Math.max(-1, Math.min(1, distractor(j, level)))),
);

/** The keys' own cosines, then the crowd's. */
function cosinesOf({ keys, crowd, level }) {
  const all = new Float64Array(keys.length + crowd);
  keys.forEach((key, j) => (all[j] = key.cosine));
  all.set(crowdOf(crowd, level), keys.length);
  return all;
}

/** Remember the last few answers: between two frames of a drag most questions are the same. */
function latest(answer, most = 16) {
  const known = [];
  return (...asked) => {
    let found = known.find((entry) => entry.asked.every((value, j) => value === asked[j]));
    if (!found) {
      found = { asked, answer: answer(...asked) };
      known.unshift(found);
      known.length = Math.min(known.length, most);
    }
    return found.answer;
  };
}

/** The weights before the gesture, which stay the same while it lasts. */
const weightsBefore = latest((name, before) => weightsOf(name, cosinesOf(before), before), 64);

function dial(state, name, of) {
  return state.dials[`${name}.${of.name}`] ?? of.default;
}

/** Scores as the mechanism reads them. */
function scoresFor(about, cosines, state) {
  const factor = sharpness(state);
  return about.cosine ? cosines : map(cosines, (c) => factor * c);
}

function weightsOf(name, cosines, state) {
  const about = mechanism(name);
  const n = cosines.length;
  const keep = new Uint8Array(n).fill(1);
  const second = new Float64Array(n);
  state.keys.forEach((key, j) => {
    keep[j] = key.masked ? 0 : 1;
    second[j] = key.second * (about.cosine ? 1 : sharpness(state));
  });
  const scalars = Object.fromEntries(about.dials.map((of) => [of.name, dial(state, name, of)]));
  const row = { keep, second, distance: new Float64Array(n), reach: NO_WINDOW, ...scalars };
  return weigher(name)(scoresFor(about, cosines, state), row);
}

/** Whether what the mechanism reads of this key, and its own settings, are the same in both states. */
function sameScore(about, before, after, was, is) {
  const factor = about.cosine ? 1 : sharpness(before) / sharpness(after);
  const dials = about.dials.every((of) => dial(before, about.name, of) === dial(after, about.name, of));
  const second = about.maps < 2 || was.second === is.second;
  return dials && second && factor === 1 && was.cosine === is.cosine && was.masked === is.masked;
}

/** For each key that kept its score: how far its weight moved all the same, else null; and the same for the crowd. */
function movements(name, state, weights) {
  const moved = { keys: state.keys.map(() => null), crowd: 0, before: state.keys.map(() => null) };
  if (!state.before) return moved;
  const about = mechanism(name);
  const old = weightsBefore(name, state.before);
  state.keys.forEach((key, j) => {
    const then = state.before.keys.findIndex((other) => other.name === key.name);
    if (then < 0) return;
    moved.before[j] = old[then];
    const by = weights[j] - old[then];
    const same = sameScore(about, state.before, state, state.before.keys[then], key);
    if (same && Math.abs(by) > 1e-9) moved.keys[j] = by;
  });
  const nobody = keyOf("", 0);
  if (state.before.level === state.level && sameScore(about, state.before, state, nobody, nobody)) {
    for (let j = 0; j < Math.min(state.crowd, state.before.crowd); j++) {
      const by = weights[state.keys.length + j] - old[state.before.keys.length + j];
      if (Math.abs(by) > 1e-9) moved.crowd++;
    }
  }
  return moved;
}
