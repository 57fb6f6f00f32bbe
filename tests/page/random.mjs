/** Random inputs that are the same in each run. */

/** @param {number} seed */
export function numbers(seed) {
  let state = seed;
  return (/** @type {number} */ below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

/**
 * Texts of some of these pieces.
 * @param {string[]} pieces
 * @param {number} count
 */
export function* texts(pieces, count) {
  const next = numbers(count);
  for (let made = 0; made < count; made += 1) {
    yield Array.from({ length: next(30) }, () => pieces[next(pieces.length)]).join("");
  }
}
