// Self-check: compare everything the page computes with the reference values of keysift's Python definitions.

const TOLERANCE = 1e-6;

/** @type {(scores: Float64Array, golden: GoldenCase) => RowInputs} */
function goldenRow(scores, golden) {
  const n = scores.length;
  return {
    keep: golden.keep.length ? Uint8Array.from(golden.keep, Number) : new Uint8Array(n).fill(1),
    second: golden.second.length ? Float64Array.from(golden.second) : new Float64Array(n),
    distance: golden.distance.length ? golden.distance : new Float64Array(n),
    ...golden.scalars,
  };
}

/** @type {(got: Numbers, expected: Numbers) => number} */
function largestDifference(got, expected) {
  let most = got.length === expected.length ? 0 : Infinity;
  for (let j = 0; j < expected.length; j++) {
    const off = Math.abs(got[j] - expected[j]);
    most = off <= most ? most : off; // NaN <= most is false, so a NaN is reported
  }
  return most;
}

/**
 * Largest difference from Python in every golden case, and the mechanisms that the page cannot compute.
 * @type {(record: PageData) => { count: number, most: number, wrong: { name: string, off: number }[], missing: string[] }}
 */
function checkAll(record) {
  /** @type {{ name: string, off: number }[]} */
  const results = [];
  for (const golden of record.cases) {
    const weigh = weightFunction(golden.mechanism);
    if (!weigh) continue;
    const x = Float64Array.from(golden.scores);
    results.push({ name: golden.mechanism, off: largestDifference(weigh(x, goldenRow(x, golden)), golden.weights) });
  }
  for (const golden of record.preset_cases) {
    if (!weightFunction(golden.mechanism)) continue;
    const preset = record.presets.find(({ name }) => name === golden.preset);
    if (!preset) throw new Error(`The page has no preset ${golden.preset}.`);
    const state = fromPreset(preset);
    const w = computeWeights(golden.mechanism, allCosines(state), state);
    const { mass, accepted, entropy } = rowSummary(w);
    const off = largestDifference(
      [...w.slice(0, golden.weights.length), mass, accepted, entropy],
      [...golden.weights, golden.mass, golden.accepted, golden.entropy],
    );
    results.push({ name: `${golden.preset}: ${golden.mechanism}`, off });
  }
  for (const golden of record.scenes) {
    const keys = golden.angles.map((angle, j) => ({
      angle,
      distance: golden.position - golden.positions[j],
      value: golden.values[j],
    }));
    const { outputs } = computeScene({ ...golden, keys, rotate: true });
    for (const name of SCENE_MECHANISMS) {
      results.push({ name: `scene: ${name}`, off: largestDifference(outputs[name], golden.outputs[name]) });
    }
  }
  const wrong = results.filter(({ off }) => !(off <= TOLERANCE));
  const most = results.reduce((worst, { off }) => (off <= worst ? worst : off), 0);
  const missing = record.mechanisms.filter(({ name }) => !weightFunction(name)).map(({ name }) => name);
  return { count: results.length, most, wrong, missing };
}
