// One card for each mechanism on show: its weights, what they add up to, how they answer a push, and its own dials.

const cards = new Map();

function card(name) {
  const about = mechanism(name);
  const chart = svg("svg", { role: "img", class: "chart" });
  const facts = Object.fromEntries(
    ["mass", "accepted", "entropy", "own", "others"].map((fact) => [fact, html("dd", {})]),
  );
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
        { class: about.absolute ? "badge alone" : "badge" },
        about.absolute ? "judges each key alone" : "compares keys",
      ),
      html(
        "button",
        { type: "button", class: "quiet", "aria-label": `Hide ${about.title}`, onclick: () => toggle(name) },
        "×",
      ),
    ),
    html("code", { class: "formula" }, about.formula),
    html("div", { class: "figure" }, chart),
    verdict,
    html(
      "dl",
      { class: "facts" },
      fact("total mass", facts.mass, "the sum of all weights"),
      fact("accepted keys", facts.accepted, "weights that are not exactly zero"),
      fact(
        "entropy",
        facts.entropy,
        "of the shares of the weights, in nats; in brackets the number of equal keys with the same entropy",
      ),
      fact("own gradient", facts.own, "by how much the chosen key's weight answers its own score"),
      fact(
        "others' gradient",
        facts.others,
        "by how much some other key's weight answers the chosen key's score, at most",
      ),
    ),
    ...sliders.map(({ row }) => row),
    html(
      "details",
      {},
      html("summary", {}, "What it promises"),
      html("ul", {}, ...about.holds.map((label) => html("li", {}, RECORD.promises[label]))),
      html(
        "p",
        { class: "source" },
        `Source: ${about.source}. Kept in every test of keysift; what is not listed is refuted by a test.`,
      ),
    ),
  );
  return { box, chart, facts, verdict, sliders };
}

function fact(label, value, meaning) {
  return html("div", { title: meaning }, html("dt", {}, label), value);
}

function dialRow(name, of) {
  const out = html("output", {});
  const input = html("input", {
    type: "range",
    min: of.low,
    max: of.high,
    step: (of.high - of.low) / 200,
    "aria-label": `${mechanism(name).title}: ${of.name}, ${of.meaning}`,
    oninput: () =>
      change((state) => ({ ...state, dials: { ...state.dials, [`${name}.${of.name}`]: Number(input.value) } }), {
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

function toggle(name) {
  change(
    (state) => ({
      ...state,
      shown: state.shown.includes(name) ? state.shown.filter((other) => other !== name) : [...state.shown, name],
    }),
    { compare: false },
  );
}

function drawPanels(state) {
  const cosines = cosinesOf(state);
  const area = byId("panels");
  for (const [name, { box }] of cards) if (!state.shown.includes(name)) [box.remove(), cards.delete(name)];
  let unmoved = true;
  for (const name of state.shown) {
    if (!cards.has(name)) {
      cards.set(name, card(name));
      area.append(cards.get(name).box);
    }
    const { chart, facts, verdict, sliders } = cards.get(name);
    const about = mechanism(name);
    const weights = weightsOf(name, cosines, state);
    const moved = movements(name, state, weights);
    const found = summary(weights);
    drawBars(chart, state, weights, moved);
    set(chart, { "aria-label": spoken(about, state, weights, moved, found) });
    say(facts.mass, number(found.mass));
    say(facts.accepted, `${count(found.accepted)} of ${count(weights.length)}`);
    say(
      facts.entropy,
      found.accepted === 0 || !Number.isFinite(found.entropy)
        ? "–"
        : `${number(found.entropy)} (${number(Math.exp(found.entropy))} keys)`,
    );
    if (!state.crowd || store.gesture === null) drawGradient(facts, name, cosines, state);
    const line = judgement(state, moved, found);
    say(verdict, line);
    set(verdict, { class: moved.keys.some((by) => by !== null) || moved.crowd ? "verdict mark" : "verdict" });
    unmoved &&= !moved.crowd && moved.keys.every((by) => by === null);
    for (const { input, out, of } of sliders) {
      const value = dial(state, name, of);
      if (Number(input.value) !== value) input.value = value;
      say(out, number(value));
    }
  }
  return unmoved;
}

function judgement(state, moved, { accepted }) {
  const names = state.keys.filter((key, j) => moved.keys[j] !== null).map((key) => key.name);
  const all = names.length + moved.crowd;
  if (all)
    return `${count(all)} ${all === 1 ? "key" : "keys"} moved although ${all === 1 ? "its" : "their"} own score did not${names.length ? `: ${names.join(", ")}` : ""}.`;
  if (accepted === 0) return "Nothing is accepted: the output is exactly zero.";
  return state.before ? "No key moved without a reason of its own." : "Change a key and watch the others.";
}

/** The gradients of a large crowd wait until the hand rests. */
function drawGradients(state) {
  const cosines = cosinesOf(state);
  for (const name of state.shown) drawGradient(cards.get(name).facts, name, cosines, state);
}

/** By a central difference on the chosen key's score, in the units the mechanism reads. */
function drawGradient(facts, name, cosines, state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  const [own, others] = j < 0 ? [null, null] : gradient(name, cosines, state, j);
  say(facts.own, Number.isFinite(own) ? number(own) : "–");
  say(facts.others, Number.isFinite(others) ? number(others) : "–");
}

function gradient(name, cosines, state, j) {
  const small = 1e-5;
  const unitOf = mechanism(name).cosine ? 1 : 1 / sharpness(state);
  const at = (by) => {
    const pushed = Float64Array.from(cosines);
    pushed[j] += by * unitOf;
    return weightsOf(name, pushed, state);
  };
  const up = at(small),
    down = at(-small);
  let others = 0;
  for (let i = 0; i < up.length; i++) {
    const slope = (up[i] - down[i]) / (2 * small);
    if (i !== j && Math.abs(slope) > Math.abs(others)) others = slope;
  }
  return [tidy((up[j] - down[j]) / (2 * small)), tidy(others)];
}

/** A difference of two rounded numbers: below 1e-9 it is rounding. */
const tidy = (slope) => (Math.abs(slope) < 1e-9 ? 0 : slope);
