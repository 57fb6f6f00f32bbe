// @ts-check
/** Server-sent events and lines out of chunks of text that end anywhere. */

/**
 * @returns {(chunk: string) => string[]} takes the next chunk and returns the lines that are whole
 *   by now; a line ends with CR LF, LF or CR
 */
export function lineReader() {
  let rest = "";
  let afterReturn = false;
  return (chunk) => {
    const lines = [];
    let start = 0;
    for (let at = 0; at < chunk.length; at += 1) {
      const code = chunk.charCodeAt(at);
      const half = afterReturn && code === 10;
      afterReturn = code === 13;
      if (half) {
        start = at + 1;
      } else if (code === 10 || code === 13) {
        lines.push(rest + chunk.slice(start, at));
        rest = "";
        start = at + 1;
      }
    }
    rest += chunk.slice(start);
    return lines;
  };
}

/**
 * @returns {(chunk: string) => string[]} takes the next chunk and returns the data of each event
 *   that is whole by now
 */
export function eventReader() {
  const lines = lineReader();
  /** @type {string[]} */
  let data = [];
  return (chunk) => {
    const events = [];
    for (const line of lines(chunk)) {
      if (line === "") {
        if (data.length > 0) events.push(data.join("\n"));
        data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return events;
  };
}
