// Exact search (docs/search.md) in the plane: older keys in groups by direction, which a bound refuses without reading a key.

/** Older keys: each group has a centre and keys up to `radius` degrees from it. */
const OLD_GROUPS = [
  [-168, 7],
  [-141, 5],
  [-118, 9],
  [-86, 4],
  [-63, 8],
  [-37, 5],
  [-12, 7],
  [14, 6],
  [38, 8],
  [71, 5],
  [97, 9],
  [133, 6],
  [158, 4],
].map(([centre, radius]) => ({ centre, radius }));
const OLD_KEYS = 9; // of each group

/**
 * Angle between two directions in degrees, 0 to 180.
 * @type {(a: number, b: number) => number}
 */
function angleBetween(a, b) {
  const difference = (((a - b) % 360) + 360) % 360;
  return Math.min(difference, 360 - difference);
}

/**
 * The groups for a query at an angle: whether the bound opens a group, and which keys of it are accepted. A refused group
 * has no accepted key: the angle to a key is at least the angle to the centre minus the radius.
 * @type {(query: number, acceptance: number) => OldGroup[]}
 */
function searchGroups(query, acceptance) {
  return OLD_GROUPS.map(({ centre, radius }) => {
    const nearest = Math.max(0, angleBetween(query, centre) - radius);
    const keys = Array.from({ length: OLD_KEYS }, (_, i) => {
      const angle = centre + radius * ((2 * i) / (OLD_KEYS - 1) - 1);
      return { angle, accepted: Math.cos((angleBetween(query, angle) * Math.PI) / 180) > 1 - acceptance };
    });
    return { centre, radius, opened: Math.cos((nearest * Math.PI) / 180) > 1 - acceptance, keys };
  });
}
