// The scores view: presets, the keys, settings, and the cards of the mechanisms on show.

let later = 0,
  spokenLater = 0;

function drawScores(state) {
  drawKeys(state);
  drawEditor(state);
  drawSettings(state);
  drawPanels(state);
  drawChooser(state);
  clearTimeout(later);
  // The curves ask for many rows: they follow when the hand rests.
  later = setTimeout(() => [drawGradients(state), drawResponse(state), drawDilution(state)], state.crowd ? 120 : 0);
  clearTimeout(spokenLater);
  if (state.before) spokenLater = setTimeout(() => announce(verdicts(state)), 700);
}

/** What every mechanism on show did, in one sentence each, for those who do not see the marks. */
function verdicts(state) {
  return state.shown.map((name) => `${mechanism(name).title}: ${cards.get(name).verdict.textContent}`).join(" ");
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
    change((state) => ({ ...state, pinned: !state.pinned, before: partOf(state) }), { compare: false }),
  );
  typed("cosine", (value) => editKey(store.state.selected, { cosine: value }));
  typed("second", (value) => editKey(store.state.selected, { second: value }));
  ranged("temperature", (text) => ({ temperature: Number((10 ** Number(text)).toPrecision(3)) }));
  ranged("width", (text) => ({ width: 2 ** Number(text) }));
  set(byId("crowd"), { max: CROWDS.length - 1 });
  ranged("crowd", (text) => ({ crowd: CROWDS[Number(text)] }));
  ranged("level", (text) => ({ level: Number(text) }));
  byId("scaled").addEventListener("change", () => change((state) => ({ ...state, scaled: byId("scaled").checked })));
  startChooser();
}

function choosePreset(preset) {
  change((state) => fromPreset(preset, state), { compare: false });
  announce(`${preset.title}: ${inWords(store.state)}`);
}

function inWords(state) {
  return `${state.keys.length} keys of your own and ${count(state.crowd)} distractors`;
}

/** A number typed by hand: taken when it is one, refused in words when it is not. */
function typed(id, accept) {
  byId(id).addEventListener("change", () => {
    const value = Number(byId(id).value);
    const fine = byId(id).value.trim() !== "" && Number.isFinite(value) && Math.abs(value) <= 1;
    set(byId(id), { "aria-invalid": !fine });
    say(byId("typed-note"), fine ? "" : "A cosine is a number from -1 to 1.");
    if (fine) accept(value);
  });
}

function ranged(id, edit) {
  byId(id).addEventListener("input", () =>
    change((state) => ({ ...state, ...edit(byId(id).value) }), { gesture: `range ${id}` }),
  );
  byId(id).addEventListener("change", endGesture);
}

/** The stops of the slider of distractors: 0, then about logarithmic to 10,000. */
const CROWDS = [0, ...new Set(Array.from({ length: 65 }, (_, k) => Math.round(10 ** (k / 16))))];

function stopOf(crowd) {
  const at = CROWDS.findIndex((stop) => stop >= crowd);
  return at < 0 ? CROWDS.length - 1 : at;
}

function drawEditor(state) {
  const key = state.keys.find(({ name }) => name === state.selected);
  byId("editor").disabled = !key;
  say(byId("editing"), key ? `Key ${key.name}` : "No key chosen");
  const put = (id, value) => {
    if (document.activeElement !== byId(id) || Number(byId(id).value) !== value) byId(id).value = value;
  };
  put("cosine", key ? key.cosine : "");
  put("second", key ? key.second : "");
  byId("second-box").hidden = !state.shown.some((name) => mechanism(name).maps === 2);
  say(byId("logit"), key ? number(key.cosine * sharpness(state)) : "–");
  set(byId("mask"), { "aria-pressed": Boolean(key?.masked) });
  set(byId("pin"), { "aria-pressed": state.pinned });
}

function drawSettings(state) {
  const put = (id, value, text) => {
    if (Number(byId(id).value) !== value) byId(id).value = value;
    say(byId(`${id}-out`), text);
    set(byId(id), { "aria-valuetext": text });
  };
  put("temperature", Math.round(Math.log10(state.temperature) * 50) / 50, number(state.temperature));
  put("width", Math.round(Math.log2(state.width)), String(state.width));
  put("crowd", stopOf(state.crowd), count(state.crowd));
  put("level", state.level, number(state.level));
  byId("scaled").checked = state.scaled;
  say(byId("sharpness"), `logit = ${number(sharpness(state))} × cosine`);
}

function startChooser() {
  for (const alone of [true, false]) {
    byId(alone ? "choose-alone" : "choose-relative").append(
      ...playable()
        .filter(({ absolute }) => absolute === alone)
        .map(({ name, title }) =>
          html(
            "label",
            {},
            html("input", { type: "checkbox", value: name, onchange: () => toggle(name) }),
            ` ${title}`,
          ),
        ),
    );
  }
}

function drawChooser(state) {
  for (const box of document.querySelectorAll("#chooser input")) box.checked = state.shown.includes(box.value);
}
