import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { addChunk, emptyAnswer, summary } from "../../crates/server/page/assets/completion.js";
import { curl, exampleBody, javascript, python } from "../../crates/server/page/assets/examples.js";
import { DEFAULTS, SettingError, chatRequest } from "../../crates/server/page/assets/request.js";

test("settings that are empty are left to the server", () => {
  const body = chatRequest({ ...DEFAULTS, model: "m" }, []);
  assert.deepEqual(Object.keys(body).sort(), ["messages", "model", "stream", "stream_options"]);
});

test("settings as fields", () => {
  const settings = {
    ...DEFAULTS,
    temperature: "0",
    seed: " 7 ",
    stop: "a\n\n b",
    tools: '{"name": "f"}',
    schema: '{"type": "object"}',
    logprobs: true,
    more: '{"n": 1, "stream": false}',
  };
  const body = chatRequest(settings, []);
  assert.equal(body.temperature, 0);
  assert.equal(body.seed, 7);
  assert.deepEqual(body.stop, ["a", " b"]);
  assert.deepEqual(body.tools, [{ type: "function", function: { name: "f" } }]);
  assert.equal(body.response_format.json_schema.schema.type, "object");
  assert.equal(body.top_logprobs, 5);
  assert.equal(body.n, 1);
  assert.equal(body.stream, true, "the page reads streams");
});

test("settings that are wrong are named", () => {
  for (const [name, value, words] of [
    ["temperature", "hot", /Temperature is hot/],
    ["tools", "{", /Tools is not JSON/],
    ["schema", "[]", /JSON schema is not an object/],
    ["more", "1", /More fields is not a JSON object/],
  ]) {
    assert.throws(
      () => chatRequest({ ...DEFAULTS, [name]: value }, []),
      (error) => error instanceof SettingError && words.test(error.message),
    );
  }
});

test("chunks add up to an answer", () => {
  const answer = emptyAnswer(1000);
  const delta = (content) => ({ choices: [{ delta: content }] });
  for (const [chunk, now] of [
    [delta({ role: "assistant" }), 1100],
    [delta({ reasoning_content: "hm" }), 1200],
    [
      {
        choices: [
          {
            delta: { content: "a" },
            logprobs: {
              content: [{ token: "a", logprob: -0.1, top_logprobs: [{ token: "b", logprob: -2 }] }],
            },
          },
        ],
      },
      1300,
    ],
    [delta({ tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "{" } }] }), 1400],
    [
      delta({
        tool_calls: [
          { index: 0, function: { arguments: "}" } },
          { index: 9, function: { name: "x" } },
        ],
      }),
      1700,
    ],
    [{ choices: [{ delta: {}, finish_reason: "length" }] }, 1701],
    [
      {
        choices: [],
        usage: {
          prompt_tokens: 10,
          completion_tokens: 6,
          prompt_tokens_details: { cached_tokens: 4, cached_tokens_by_tier: { pool: 0, disk: 4 } },
        },
      },
      1702,
    ],
  ]) {
    addChunk(answer, chunk, now);
  }
  assert.equal(answer.content, "a");
  assert.equal(answer.reasoning, "hm");
  assert.deepEqual(answer.calls, [{ id: "c", name: "f", arguments: "{}" }]);
  assert.equal(answer.tokens[0].others[0].text, "b");
  assert.deepEqual(summary(answer), [
    "6 tokens",
    "10.0 tokens/s",
    "first token 200 ms",
    "4 of 10 prompt tokens cached (disk 4)",
    "cut at the token limit",
  ]);
});

test("an error in the stream is the answer's", () => {
  const answer = emptyAnswer(0);
  addChunk(answer, { error: { message: "engine lost" } }, 1);
  assert.equal(answer.error, "engine lost");
});

test("chunks of no known form change nothing", () => {
  const answer = emptyAnswer(0);
  const empty = structuredClone(answer);
  for (const chunk of [
    null,
    1,
    "x",
    {},
    { choices: {} },
    { choices: [null] },
    { choices: [{ delta: { content: 5 } }] },
  ])
    addChunk(answer, chunk, 1);
  assert.deepEqual(answer, empty);
});

const HOSTILE = `a'b"\\ $(touch x) \`id\` \u202e`;
const example = (method, path, model) => ({
  ...{ method, path, base: "http://localhost:8000", key: true },
  body: exampleBody(path, true, model),
});

test("a shell, Python and JavaScript read the examples as they are meant", () => {
  const one = example("post", "/v1/chat/completions", HOSTILE);
  const printed = spawnSync("sh", ["-c", `curl() { printf '%s\\n' "$@"; }\n${curl(one)}`], {
    env: { API_KEY: "k" },
    encoding: "utf8",
  });
  const words = printed.stdout.split("\n");
  assert.equal(words[0], "http://localhost:8000/v1/chat/completions");
  assert.ok(words.includes("authorization: Bearer k"));
  assert.deepEqual(JSON.parse(words[words.indexOf("-d") + 1]), one.body);
  const program = python(one)
    .replace(
      "from openai import OpenAI",
      "import json\nfrom unittest.mock import MagicMock as OpenAI",
    )
    .replace("print(answer)", "print(json.dumps(client.chat.completions.create.call_args.kwargs))");
  const ran = spawnSync("python3", ["-c", program], {
    env: { ...process.env, API_KEY: "k" },
    encoding: "utf8",
  });
  assert.deepEqual(JSON.parse(ran.stdout), one.body, ran.stderr);
  const requests = python(example("post", "/tokenize", HOSTILE)).replace(
    "import requests",
    "class requests:\n    post = lambda *a, json, headers: " +
      "type('R', (), {'status_code': 1, 'text': json['model']})",
  );
  assert.equal(
    spawnSync("python3", ["-c", requests], {
      env: { ...process.env, API_KEY: "k" },
      encoding: "utf8",
    }).stdout,
    `1 ${HOSTILE}\n`,
  );
  const js = javascript(one)
    .replace("const answer = await fetch(", "const answer = fetched(")
    .replace(/console.log.*/, "return answer;");
  const [address, options] = new Function("fetched", "process", js)((...given) => given, {
    env: { API_KEY: "k" },
  });
  assert.equal(address, "http://localhost:8000/v1/chat/completions");
  assert.deepEqual(JSON.parse(options.body), one.body);
});

test("what cannot be seen is written by its number", () => {
  for (const made of [curl, python, javascript]) {
    assert.ok(!made(example("post", "/v1/embeddings", HOSTILE)).includes("\u202e"));
  }
});
