// Exact search: the cap of keys that the last query accepts, the groups of keys that it opens, and those it never opens.

/** @type {(meta: MapHead) => HTMLElement[] | SVGElement[]} */
function groupsPicture(meta) {
  const threshold = thresholdOf(view);
  if (!meta.groups.length || threshold === null) return [];
  const [width, left, right, top, line] = [300, 8, 292, 24, 9];
  const base = top + line * meta.groups.length + 4;
  const angle = (/** @type {number} */ cosine) => (Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI;
  const x = (/** @type {number} */ degrees) => left + ((right - left) * Math.max(0, Math.min(180, degrees))) / 180;
  const cap = angle(threshold);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${base + 34}`, role: "img", class: "groups" });
  chart.append(svg("rect", { x: left, y: top - 6, width: x(cap) - left, height: base - top + 6, class: "cap" }));
  chart.append(svg("text", { x: left, y: 13, class: "tick" }, `accepted: within ${Math.round(cap)}°`));
  meta.groups.forEach((group, at) => {
    const [centre, reach] = [angle(group.centre), angle(group.reach)];
    const kind = group.bound > threshold ? "opened" : "unopened";
    const y = top + line * at + 4;
    const title = `${formatCount(group.size)} keys from ${Math.round(Math.max(0, centre - reach))}° on, ${kind}; nearest key: ${Math.round(angle(group.best))}°`;
    const own = svg("g", { class: kind }, svg("title", {}, title));
    own.append(svg("line", { x1: x(centre - reach), x2: x(centre + reach), y1: y, y2: y }), svg("circle", { cx: x(angle(group.best)), cy: y, r: 2.5 }));
    chart.append(own);
  });
  for (const tick of [0, 60, 120, 180]) chart.append(svg("text", { x: x(tick), y: base + 12, "text-anchor": tick === 0 ? "start" : tick === 180 ? "end" : "middle", class: "tick" }, `${tick}°`));
  chart.append(svg("text", { x: width / 2, y: base + 28, "text-anchor": "middle", class: "tick" }, "angle between query and key"));
  const left_out = meta.groups.filter((group) => group.bound <= threshold);
  const keys = (/** @type {KeyGroup[]} */ groups) => groups.reduce((sum, group) => sum + group.size, 0);
  const sentence = `Exact search for the last query: ${left_out.length} of ${meta.groups.length} groups lie outside its cap, so ${formatCount(keys(left_out))} of ${formatCount(keys(meta.groups))} keys in the window are refused unread.`;
  chart.setAttribute("aria-label", sentence);
  const hint = "A line spans the angles that a group of keys can have, a dot is its nearest key. A line outside the shaded cap is never opened.";
  return [html("p", { id: "groups-note" }, sentence), html("p", { class: "hint" }, hint), html("div", {}, chart)];
}
