// Starting the page: the record, the state from the address, views, toolbar and keyboard.

function announce(text) {
  say(byId("spoken"), text);
}

function draw(state) {
  for (const view of VIEWS) {
    const chosen = view === state.view;
    byId(`view-${view}`).hidden = !chosen;
    set(byId(`tab-${view}`), { "aria-selected": chosen, tabindex: chosen ? 0 : -1 });
  }
  ({ scores: drawScores, geometry: drawGeometry, map: drawMaps, real: drawReal })[state.view](state);
  byId("undo").disabled = !store.past.length;
  byId("redo").disabled = !store.future.length;
  clearTimeout(draw.address);
  draw.address = setTimeout(() => history.replaceState(null, "", toAddress(store.state)), 200);
}

function show(view, focus = false) {
  if (view !== "geometry") stopWalking();
  store.state = { ...store.state, view };
  redraw();
  if (focus) byId(`tab-${view}`).focus();
}

function startTabs() {
  for (const view of VIEWS) {
    byId(`tab-${view}`).addEventListener("click", () => show(view));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) show(VIEWS[(VIEWS.indexOf(view) + by + VIEWS.length) % VIEWS.length], true);
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
      event.target.matches("textarea, input[type=number]")
    )
      return;
    event.preventDefault();
    (event.shiftKey || event.key.toLowerCase() === "y" ? redo : undo)();
  });
}

async function copyLink() {
  history.replaceState(null, "", toAddress(store.state));
  try {
    await navigator.clipboard.writeText(location.href);
    announce("The link is in the clipboard.");
  } catch {
    announce("The address of this page is the link: copy it from the address bar.");
  }
}

/** The page's numbers against Python's, said in the last line. */
function selfCheck() {
  const { count: cases, most, wrong, missing } = checkAll(RECORD);
  say(
    byId("checked"),
    wrong.length
      ? `Warning: ${wrong.length} of ${cases} numbers differ from keysift's Python (${wrong[0].name}, by ${wrong[0].off}). Do not trust this page in this browser.`
      : `Checked when it opened: ${cases} rows agree with keysift ${RECORD.version} in Python, the largest difference is ${most.toExponential(1)}.${missing.length ? ` Not shown: ${missing.join(", ")}.` : ""}`,
  );
  set(byId("checked"), { class: wrong.length ? "refused" : "" });
  return { cases, most, wrong };
}

function start() {
  RECORD = JSON.parse(byId("record").textContent);
  startTabs();
  startToolbar();
  startScores();
  startGeometry();
  startMaps();
  startReal();
  store.draw = draw;
  store.state = fromAddress(location.hash) ?? fromPreset(RECORD.presets.find(({ name }) => name === "third"));
  draw(store.state);
  addEventListener("resize", redraw);
  addEventListener("hashchange", () => {
    const state = fromAddress(location.hash);
    if (state) change(() => state, { compare: false });
  });
  setTimeout(selfCheck, 50);
}

start();
