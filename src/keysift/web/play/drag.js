// Dragging by pointer.

/**
 * Call `move` with the pointer in chart coordinates while it drags the element; one drag is one undo step.
 * @type {(element: SVGElement, chart: SVGSVGElement, gesture: string, move: MovePointer) => void}
 */
function draggable(element, chart, gesture, move) {
  element.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    event.preventDefault();
    element.setPointerCapture(event.pointerId);
    element.focus({ preventScroll: true });
    endGesture();
    /** @param {PointerEvent} at */
    const follow = (at) => {
      const box = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / box.width;
      store.lastChange = performance.now(); // a slow drag is still one undo step
      move((at.clientX - box.left) * scale, (at.clientY - box.top) * scale, gesture);
    };
    const done = () => {
      element.removeEventListener("pointermove", follow);
      endGesture();
    };
    element.addEventListener("pointermove", follow);
    element.addEventListener("pointerup", done, { once: true });
    element.addEventListener("pointercancel", done, { once: true });
  });
}
