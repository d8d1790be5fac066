// Scores view: presets, keys, settings, and the cards of the visible mechanisms.

let curvesTimer = 0,
  announceTimer = 0;

/** @type {(state: State) => void} */
function drawScores(state) {
  drawKeys(state);
  drawEditor(state);
  drawSettings(state);
  drawPanels(state);
  drawChooser(state);
  clearTimeout(curvesTimer);
  // Curves need many rows of weights, so they are drawn when the gesture pauses.
  curvesTimer = setTimeout(() => [drawGradients(state), drawResponse(state), drawDilution(state)], state.crowd ? 120 : 0);
  clearTimeout(announceTimer);
  if (state.before) announceTimer = setTimeout(() => announce(describeVerdicts(state)), 700);
}

/**
 * One sentence per visible mechanism, for screen readers.
 * @type {(state: State) => string}
 */
function describeVerdicts(state) {
  return state.shown.map((name) => `${mechanism(name).title}: ${cards.get(name)?.verdict.textContent}`).join(" ");
}

function startScores() {
  byId("presets").append(
    ...RECORD.presets.map((preset) =>
      html("button", { type: "button", "data-preset": preset.name, onclick: () => choosePreset(preset) }, preset.title),
    ),
  );
  byId("add").addEventListener("click", () => addKey());
  byId("duplicate").addEventListener("click", () => duplicateKey(store.state.selected));
  byId("mask").addEventListener("click", () => maskKey(store.state.selected));
  byId("remove").addEventListener("click", () => removeKey(store.state.selected));
  byId("pin").addEventListener("click", () =>
    updateState((state) => ({ ...state, pinned: !state.pinned, before: weightInputs(state) }), { compare: false }),
  );
  onNumberInput("cosine", (value) => editKey(store.state.selected, { cosine: value }));
  onNumberInput("second", (value) => editKey(store.state.selected, { second: value }));
  onRangeInput("temperature", (text) => ({ temperature: Number((10 ** Number(text)).toPrecision(3)) }));
  onRangeInput("width", (text) => ({ width: 2 ** Number(text) }));
  setAttributes(byId("crowd"), { max: CROWDS.length - 1 });
  onRangeInput("crowd", (text) => ({ crowd: CROWDS[Number(text)] }));
  onRangeInput("level", (text) => ({ level: Number(text) }));
  byId("scaled").addEventListener("change", () => updateState((state) => ({ ...state, scaled: inputById("scaled").checked })));
  startChooser();
}

/** @type {(preset: Preset) => void} */
function choosePreset(preset) {
  updateState((state) => fromPreset(preset, state), { compare: false });
  announce(`${preset.title}: ${describeKeys(store.state)}`);
}

/** @type {(state: State) => string} */
function describeKeys(state) {
  return `${state.keys.length} keys of your own and ${formatCount(state.crowd)} distractors`;
}

/**
 * Accept a typed cosine, or say what is expected.
 * @type {(id: string, accept: (value: number) => void) => void}
 */
function onNumberInput(id, accept) {
  byId(id).addEventListener("change", () => {
    const value = Number(inputById(id).value);
    const valid = inputById(id).value.trim() !== "" && Number.isFinite(value) && Math.abs(value) <= 1;
    setAttributes(byId(id), { "aria-invalid": !valid });
    setText(byId("typed-note"), valid ? "" : "A cosine must be a number from -1 to 1.");
    if (valid) accept(value);
  });
}

/** @type {(id: string, edit: (text: string) => Partial<State>) => void} */
function onRangeInput(id, edit) {
  byId(id).addEventListener("input", () =>
    updateState((state) => ({ ...state, ...edit(inputById(id).value) }), { gesture: `range ${id}` }),
  );
  byId(id).addEventListener("change", endGesture);
}

/** Stops of the distractor slider: 0, then roughly logarithmic up to 10,000. */
const CROWDS = [0, ...new Set(Array.from({ length: 65 }, (_, k) => Math.round(10 ** (k / 16))))];

/** @type {(crowd: number) => number} */
function sliderStop(crowd) {
  const at = CROWDS.findIndex((stop) => stop >= crowd);
  return at < 0 ? CROWDS.length - 1 : at;
}

/** @type {(state: State) => void} */
function drawEditor(state) {
  const key = state.keys.find(({ name }) => name === state.selected);
  byId("editor").toggleAttribute("disabled", !key);
  setText(byId("editing"), key ? `Key ${key.name}` : "No key selected");
  /** @type {(id: string, value: number | undefined) => void} */
  const show = (id, value) => {
    const input = inputById(id);
    if (document.activeElement !== input || Number(input.value) !== value) input.value = String(value ?? "");
  };
  show("cosine", key?.cosine);
  show("second", key?.second);
  byId("second-box").hidden = !state.shown.some((name) => mechanism(name).maps === 2);
  setText(byId("logit"), key ? formatNumber(key.cosine * sharpness(state)) : "–");
  setAttributes(byId("mask"), { "aria-pressed": Boolean(key?.masked) });
  setAttributes(byId("pin"), { "aria-pressed": state.pinned });
}

/** @type {(state: State) => void} */
function drawSettings(state) {
  /** @type {(id: string, value: number, text: string) => void} */
  const show = (id, value, text) => {
    if (Number(inputById(id).value) !== value) inputById(id).value = String(value);
    setText(byId(`${id}-out`), text);
    setAttributes(byId(id), { "aria-valuetext": text });
  };
  show("temperature", Math.round(Math.log10(state.temperature) * 50) / 50, formatNumber(state.temperature));
  show("width", Math.round(Math.log2(state.width)), String(state.width));
  show("crowd", sliderStop(state.crowd), formatCount(state.crowd));
  show("level", state.level, formatNumber(state.level));
  inputById("scaled").checked = state.scaled;
  setText(byId("sharpness"), `logit = ${formatNumber(sharpness(state))} × cosine`);
}

function startChooser() {
  for (const pointwise of [true, false]) {
    byId(pointwise ? "choose-absolute" : "choose-relative").append(
      ...playable()
        .filter(({ absolute }) => absolute === pointwise)
        .map(({ name, title }) =>
          html(
            "label",
            {},
            html("input", { type: "checkbox", value: name, onchange: () => toggleMechanism(name) }),
            ` ${title}`,
          ),
        ),
    );
  }
}

/** @type {(state: State) => void} */
function drawChooser(state) {
  /** @type {NodeListOf<HTMLInputElement>} */
  const boxes = document.querySelectorAll("#chooser input");
  for (const box of boxes) box.checked = state.shown.includes(box.value);
}
