// One card per visible mechanism: weights, their sum and entropy, gradients, and the dials of the mechanism.

/** @type {Map<string, Card>} */
const cards = new Map();

/** @type {(name: string) => Card} */
function createCard(name) {
  const about = mechanism(name);
  const chart = svg("svg", { role: "img", class: "chart" });
  const facts = { mass: html("dd"), accepted: html("dd"), entropy: html("dd"), own: html("dd"), others: html("dd") };
  const verdict = html("p", { class: "verdict" });
  const sliders = about.dials.map((of) => dialRow(name, of));
  const box = html(
    "article",
    { class: "card", "data-mechanism": name },
    html(
      "header",
      {},
      html("h3", {}, about.title),
      html(
        "span",
        { class: about.absolute ? "badge absolute" : "badge" },
        about.absolute ? "weighs each key on its own" : "compares keys",
      ),
      html(
        "button",
        { type: "button", class: "quiet", "aria-label": `Hide ${about.title}`, onclick: () => toggleMechanism(name) },
        "×",
      ),
    ),
    html("code", { class: "formula" }, about.formula),
    html("div", { class: "figure" }, chart),
    verdict,
    html(
      "dl",
      { class: "facts" },
      fact("total mass", facts.mass, "sum of all weights"),
      fact("accepted keys", facts.accepted, "keys whose weight is not exactly zero"),
      fact(
        "entropy",
        facts.entropy,
        "entropy of the normalised absolute weights, in nats; in brackets the number of equal keys with the same entropy",
      ),
      fact("own gradient", facts.own, "derivative of the selected key's weight by its own score"),
      fact(
        "others' gradient",
        facts.others,
        "largest derivative of any other key's weight by the selected key's score",
      ),
    ),
    ...sliders.map(({ row }) => row),
    html(
      "details",
      {},
      html("summary", {}, "Promises"),
      html("ul", {}, ...about.holds.map((label) => html("li", {}, RECORD.promises[label]))),
      html(
        "p",
        { class: "source" },
        `Source: ${about.source}. Tests verify every promise listed and refute every other.`,
      ),
    ),
  );
  return { box, chart, facts, verdict, sliders };
}

/** @type {(label: string, value: HTMLElement, meaning: string) => HTMLElement} */
function fact(label, value, meaning) {
  return html("div", { title: meaning }, html("dt", {}, label), value);
}

/** @type {(name: string, of: Dial) => DialSlider} */
function dialRow(name, of) {
  const out = html("output", {});
  /** @type {HTMLInputElement} */
  const input = html("input", {
    type: "range",
    min: of.low,
    max: of.high,
    step: (of.high - of.low) / 200,
    "aria-label": `${mechanism(name).title}: ${of.name}, ${of.meaning}`,
    oninput: () =>
      updateState((state) => ({ ...state, dials: { ...state.dials, [`${name}.${of.name}`]: Number(input.value) } }), {
        gesture: `dial ${name} ${of.name}`,
      }),
    onchange: endGesture,
  });
  return {
    row: html("label", { class: "dial", title: of.meaning }, html("span", {}, of.name), input, out),
    input,
    out,
    of,
  };
}

/** @type {(name: string) => void} */
function toggleMechanism(name) {
  updateState(
    (state) => ({
      ...state,
      shown: state.shown.includes(name) ? state.shown.filter((other) => other !== name) : [...state.shown, name],
    }),
    { compare: false },
  );
}

/** @type {(state: State) => void} */
function drawPanels(state) {
  const cosines = allCosines(state);
  const area = byId("panels");
  for (const [name, { box }] of cards) if (!state.shown.includes(name)) [box.remove(), cards.delete(name)];
  for (const name of state.shown) {
    let card = cards.get(name);
    if (!card) {
      card = createCard(name);
      cards.set(name, card);
      area.append(card.box);
    }
    const { chart, facts, verdict, sliders } = card;
    const about = mechanism(name);
    const weights = computeWeights(name, cosines, state);
    const changes = weightChanges(name, state, weights);
    const total = rowSummary(weights);
    drawBars(chart, state, weights, changes);
    setAttributes(chart, { "aria-label": describeBars(about, state, weights, changes, total) });
    setText(facts.mass, formatNumber(total.mass));
    setText(facts.accepted, `${formatCount(total.accepted)} of ${formatCount(weights.length)}`);
    setText(
      facts.entropy,
      total.accepted === 0 || !Number.isFinite(total.entropy)
        ? "–"
        : `${formatNumber(total.entropy)} (${formatNumber(Math.exp(total.entropy))} keys)`,
    );
    if (!state.crowd || store.gesture === null) drawGradient(facts, name, cosines, state);
    const line = verdictText(state, changes, total);
    setText(verdict, line);
    setAttributes(verdict, { class: changes.keys.some((by) => by !== null) || changes.crowd ? "verdict mark" : "verdict" });
    for (const { input, out, of } of sliders) {
      const value = dialValue(state, name, of);
      if (Number(input.value) !== value) input.value = String(value);
      setText(out, formatNumber(value));
    }
  }
}

/** @type {(state: State, changes: Changes, summary: Summary) => string} */
function verdictText(state, changes, { accepted }) {
  const names = state.keys.filter((_, j) => changes.keys[j] !== null).map((key) => key.name);
  const all = names.length + changes.crowd;
  if (all)
    return `${formatCount(all)} ${all === 1 ? "weight" : "weights"} changed although ${all === 1 ? "its" : "their"} own score did not${names.length ? `: ${names.join(", ")}` : ""}.`;
  if (accepted === 0) return "No key is accepted: the output is exactly zero.";
  return state.before ? "No weight changed unless its own score did." : "Change a key and watch the others.";
}

/**
 * Gradients with many distractors are computed when the gesture ends.
 * @type {(state: State) => void}
 */
function drawGradients(state) {
  const cosines = allCosines(state);
  for (const name of state.shown) {
    const card = cards.get(name);
    if (card) drawGradient(card.facts, name, cosines, state);
  }
}

/**
 * Gradients by the selected key's score, in the units the mechanism reads.
 * @type {(facts: Record<FactName, HTMLElement>, name: string, cosines: Float64Array, state: State) => void}
 */
function drawGradient(facts, name, cosines, state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  const [own, others] = j < 0 ? [NaN, NaN] : gradient(name, cosines, state, j);
  setText(facts.own, Number.isFinite(own) ? formatNumber(own) : "–");
  setText(facts.others, Number.isFinite(others) ? formatNumber(others) : "–");
}

/**
 * Central differences: derivative of the own weight, and the largest derivative of any other weight.
 * @type {(name: string, cosines: Float64Array, state: State, j: number) => Point}
 */
function gradient(name, cosines, state, j) {
  const epsilon = 1e-5;
  const unitOf = mechanism(name).cosine ? 1 : 1 / sharpness(state);
  /** @param {number} by */
  const at = (by) => {
    const pushed = Float64Array.from(cosines);
    pushed[j] += by * unitOf;
    return computeWeights(name, pushed, state);
  };
  const up = at(epsilon),
    down = at(-epsilon);
  let others = 0;
  for (let i = 0; i < up.length; i++) {
    const slope = (up[i] - down[i]) / (2 * epsilon);
    if (i !== j && Math.abs(slope) > Math.abs(others)) others = slope;
  }
  return [dropRounding((up[j] - down[j]) / (2 * epsilon)), dropRounding(others)];
}

/**
 * Slopes below 1e-9 are rounding errors of the finite difference.
 * @type {(slope: number) => number}
 */
const dropRounding = (slope) => (Math.abs(slope) < 1e-9 ? 0 : slope);
