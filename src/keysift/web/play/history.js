// One store for the whole page: changes with undo and redo, drawn at most once a frame, kept in the address.

const store = { state: null, past: [], future: [], gesture: null, since: 0, draw: () => {}, due: false };

function redraw() {
  if (store.due) return;
  store.due = true;
  requestAnimationFrame(() => {
    store.due = false;
    store.draw(store.state);
  });
}

/** Replace the state by what `edit` makes of it. Changes of one gesture (a drag, a held arrow key) are one undo step;
 *  `compare` marks what moved against the state before the gesture. */
function change(edit, { gesture = null, compare = true } = {}) {
  const now = performance.now();
  const goesOn = gesture !== null && gesture === store.gesture && now - store.since < 1500;
  const next = edit(store.state);
  if (!goesOn) {
    store.past.push(store.state);
    if (store.past.length > 200) store.past.shift();
    store.future = [];
    if (compare && !store.state.pinned) next.before = partOf(store.state);
  } else if (compare && !store.state.pinned) {
    next.before = store.state.before;
  }
  store.state = next;
  store.gesture = gesture;
  store.since = now;
  redraw();
}

function endGesture() {
  store.gesture = null;
}

function step(from, to) {
  if (!from.length) return false;
  to.push(store.state);
  store.state = from.pop();
  endGesture();
  redraw();
  return true;
}

const undo = () => step(store.past, store.future);
const redo = () => step(store.future, store.past);
