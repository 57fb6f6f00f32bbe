import assert from "node:assert/strict";
import { test } from "node:test";

import { eventReader, lineReader } from "../../crates/server/page/assets/sse.js";
import { numbers } from "./random.mjs";

const STREAM =
  ': note\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\n\rdata\r' +
  "\rid: 7\n\ndata: é😀\n\ndata: cut";
const EVENTS = ['{"a": 1}', "two\nlines", "", "é😀"];

/** The chunks of a text, cut at random places. */
function* cut(text, seed) {
  const next = numbers(seed);
  for (let at = 0; at < text.length;) {
    const length = 1 + next(6);
    yield text.slice(at, at + length);
    at += length;
  }
}

test("events are the same wherever the stream is cut", () => {
  for (let seed = 0; seed < 300; seed += 1) {
    const read = eventReader();
    assert.deepEqual([...cut(STREAM, seed)].flatMap(read), EVENTS, `seed ${seed}`);
  }
});

test("an event ends with an empty line, not with the stream", () => {
  const read = eventReader();
  assert.deepEqual(read("data: 1\n"), []);
  assert.deepEqual(read("\n"), ["1"]);
});

test("a return and a line feed in two chunks are one end of line", () => {
  const read = lineReader();
  assert.deepEqual([...read("a\r"), ...read("\nb\n")], ["a", "b"]);
});
