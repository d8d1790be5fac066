// The store of the page: state with undo and redo, drawn at most once per frame.

/** @type {Store} */
const store = {
  state: initialState(),
  past: [],
  future: [],
  gesture: null,
  lastChange: 0,
  draw: () => {},
  frameRequested: false,
};

function redraw() {
  if (store.frameRequested) return;
  store.frameRequested = true;
  requestAnimationFrame(() => {
    store.frameRequested = false;
    store.draw(store.state);
  });
}

/**
 * Replace the state by `edit(state)`. Changes of one gesture (a drag, a held arrow key) are one undo step;
 *  `compare` marks weights that differ from those before the gesture.
 * @type {(edit: (state: State) => State, options?: UpdateOptions) => void}
 */
function updateState(edit, { gesture = null, compare = true } = {}) {
  const now = performance.now();
  const continues = gesture !== null && gesture === store.gesture && now - store.lastChange < 1500;
  const next = edit(store.state);
  if (!continues) {
    store.past.push(store.state);
    if (store.past.length > 200) store.past.shift();
    store.future = [];
    if (compare && !store.state.pinned) next.before = weightInputs(store.state);
  } else if (compare && !store.state.pinned) {
    next.before = store.state.before;
  }
  store.state = next;
  store.gesture = gesture;
  store.lastChange = now;
  redraw();
}

/** The next change starts a new undo step. */
function endGesture() {
  store.gesture = null;
}

/** @type {(from: State[], to: State[]) => void} */
function stepHistory(from, to) {
  const state = from.pop();
  if (!state) return;
  to.push(store.state);
  store.state = state;
  endGesture();
  redraw();
}

const undo = () => stepHistory(store.past, store.future);
const redo = () => stepHistory(store.future, store.past);
