// Groups of older keys around the circle of the geometry view: arcs of groups that the query opens, and of those it never does.

/** @type {(scene: Scene, at: (angle: number, r?: number) => Point, radius: number) => SVGElement[]} */
function groupMarks(scene, at, radius) {
  const groups = searchGroups(scene.query, scene.acceptance);
  const opened = groups.filter((group) => group.opened);
  const accepted = opened.flatMap((group) => group.keys).filter((key) => key.accepted).length;
  setText(
    byId("circle-groups"),
    `Outer ring: ${groups.length * OLD_KEYS} older keys in ${groups.length} groups by direction. ` +
      `${groups.length - opened.length} groups are refused by their centre and radius, none of their keys is read. ` +
      `${opened.length * OLD_KEYS} keys are read, ${accepted} accepted.`,
  );
  return groups.flatMap(({ centre, radius: spread, opened: isOpened, keys }) => [
    svg("path", {
      d: `M${at(centre + spread + 2, 1.2)}A${1.2 * radius} ${1.2 * radius} 0 0 1 ${at(centre - spread - 2, 1.2)}`,
      class: isOpened ? "group opened" : "group",
    }),
    ...keys.map((key) => {
      const [cx, cy] = at(key.angle, 1.12);
      return svg("circle", { cx, cy, r: 2, class: key.accepted ? "old in" : "old" });
    }),
  ]);
}
