// Entry point: read the embedded data and the state in the URL, then start the views, the toolbar and the shortcuts.

/**
 * Show a message in the status line, which screen readers read aloud.
 * @type {(text: string) => void}
 */
function announce(text) {
  setText(byId("spoken"), text);
}

let urlTimer = 0;

/** @type {(state: State) => void} */
function draw(state) {
  for (const view of VIEWS) {
    const chosen = view === state.view;
    byId(`view-${view}`).hidden = !chosen;
    setAttributes(byId(`tab-${view}`), { "aria-selected": chosen, tabindex: chosen ? 0 : -1 });
  }
  ({ scores: drawScores, geometry: drawGeometry, map: drawMaps, real: drawReal })[state.view](state);
  byId("undo").toggleAttribute("disabled", !store.past.length);
  byId("redo").toggleAttribute("disabled", !store.future.length);
  clearTimeout(urlTimer);
  urlTimer = setTimeout(() => history.replaceState(null, "", toHash(store.state)), 200);
}

/** @type {(view: View, focus?: boolean) => void} */
function showView(view, focus = false) {
  if (view !== "geometry") stopMoving();
  store.state = { ...store.state, view };
  redraw();
  if (focus) byId(`tab-${view}`).focus();
}

function startTabs() {
  for (const view of VIEWS) {
    byId(`tab-${view}`).addEventListener("click", () => showView(view));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (step) showView(VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length], true);
    });
  }
}

function startToolbar() {
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  byId("svg").addEventListener("click", exportSvg);
  byId("png").addEventListener("click", exportPng);
  byId("link").addEventListener("click", copyLink);
  document.addEventListener("keydown", (event) => {
    if (
      !(event.ctrlKey || event.metaKey) ||
      !["z", "y"].includes(event.key.toLowerCase()) ||
      !(event.target instanceof Element) ||
      event.target.matches("textarea, input[type=number]")
    )
      return;
    event.preventDefault();
    (event.shiftKey || event.key.toLowerCase() === "y" ? redo : undo)();
  });
}

async function copyLink() {
  history.replaceState(null, "", toHash(store.state));
  try {
    await navigator.clipboard.writeText(location.href);
    announce("Link copied to the clipboard.");
  } catch {
    announce("The browser does not allow copying; copy the address of this page instead.");
  }
}

/** Compare the page's results with the reference values from Python, and report the outcome in the footer. */
function selfCheck() {
  const { count: cases, most, wrong, missing } = checkAll(RECORD);
  setText(
    byId("checked"),
    wrong.length
      ? `Warning: ${wrong.length} of ${cases} results differ from keysift in Python (${wrong[0].name}, by ${wrong[0].off}). Do not trust this page in this browser.`
      : `Checked on opening: ${cases} results agree with keysift ${RECORD.version} in Python; largest difference ${most.toExponential(1)}.${missing.length ? ` Not shown: ${missing.join(", ")}.` : ""}`,
  );
  setAttributes(byId("checked"), { class: wrong.length ? "error" : "" });
  return { cases, most, wrong };
}

function start() {
  RECORD = JSON.parse(byId("data").textContent ?? "");
  startTabs();
  startToolbar();
  startScores();
  startGeometry();
  startMaps();
  startReal();
  store.draw = draw;
  store.state = fromHash(location.hash) ?? fromPreset(RECORD.presets.find(({ name }) => name === "third") ?? RECORD.presets[0]);
  draw(store.state);
  addEventListener("resize", redraw);
  addEventListener("hashchange", () => {
    const state = fromHash(location.hash);
    if (state) updateState(() => state, { compare: false });
  });
  setTimeout(selfCheck, 50);
}

start();
