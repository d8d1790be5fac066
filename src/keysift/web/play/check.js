// The page's own test: everything it computes, against the numbers keysift's Python definitions gave.

const ALLOWED = 1e-6;

function rowOf(scores, more = {}) {
  const n = scores.length;
  return {
    keep: more.keep && more.keep.length ? Uint8Array.from(more.keep, Number) : new Uint8Array(n).fill(1),
    second: more.second && more.second.length ? Float64Array.from(more.second) : new Float64Array(n),
    distance: more.distance && more.distance.length ? more.distance : new Float64Array(n),
    ...more.scalars,
  };
}

function furthest(got, expected) {
  let most = got.length === expected.length ? 0 : Infinity;
  for (let j = 0; j < expected.length; j++) {
    const off = Math.abs(got[j] - expected[j]);
    most = off <= most ? most : off; // a NaN is not <= anything, so it shows
  }
  return most;
}

/** Differences from Python: { name, off } for every golden case, and which mechanisms the page cannot show. */
function checkAll(record) {
  const found = [];
  for (const golden of record.cases) {
    const weigh = weigher(golden.mechanism);
    if (!weigh) continue;
    const x = Float64Array.from(golden.scores);
    found.push({ name: golden.mechanism, off: furthest(weigh(x, rowOf(x, golden)), golden.weights) });
  }
  for (const golden of record.preset_cases) {
    if (!weigher(golden.mechanism)) continue;
    const state = fromPreset(record.presets.find((preset) => preset.name === golden.preset));
    const w = weightsOf(golden.mechanism, cosinesOf(state), state);
    const { mass, accepted, entropy } = summary(w);
    const off = furthest(
      [...w.slice(0, golden.weights.length), mass, accepted, entropy],
      [...golden.weights, golden.mass, golden.accepted, golden.entropy],
    );
    found.push({ name: `${golden.preset}: ${golden.mechanism}`, off });
  }
  for (const golden of record.scenes) {
    const keys = golden.angles.map((angle, j) => ({
      angle,
      distance: golden.position - golden.positions[j],
      value: golden.values[j],
    }));
    const { outputs } = lookAt({ ...golden, keys, turning: true });
    for (const name of Object.keys(golden.outputs)) {
      found.push({ name: `scene: ${name}`, off: furthest(outputs[name], golden.outputs[name]) });
    }
  }
  const wrong = found.filter(({ off }) => !(off <= ALLOWED));
  const most = found.reduce((worst, { off }) => (off <= worst ? worst : off), 0);
  const missing = record.mechanisms.filter(({ name }) => !weigher(name)).map(({ name }) => name);
  return { count: found.length, most, wrong, missing };
}
