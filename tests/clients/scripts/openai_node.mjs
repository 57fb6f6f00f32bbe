// openai for Node.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { feature, BASE_URL, MODEL, QUESTION } from "./check.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const Capital = z.object({ city: z.string(), country: z.string() });
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

await feature("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 20 });
  if (!answer.choices[0].message.content) throw new Error("empty");
});

await feature("stream", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages, max_tokens: 20 });
  if (!(await stream.finalContent())) throw new Error("empty");
});

await feature("parse with zod", async () => {
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages,
    max_tokens: 200,
    temperature: 0,
    response_format: zodResponseFormat(Capital, "capital"),
  });
  Capital.parse(answer.choices[0].message.parsed);
});

await feature("tools: required", async () => {
  const answer = await client.chat.completions.create({
    model: MODEL,
    messages,
    tools,
    tool_choice: "required",
    max_tokens: 200,
  });
  const [call] = answer.choices[0].message.tool_calls;
  if (typeof JSON.parse(call.function.arguments).city !== "string") throw new Error("no city");
});

await feature("runTools", async () => {
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages,
    max_tokens: 100,
    tools: [
      {
        type: "function",
        function: {
          name: "weather",
          parameters: tools[0].function.parameters,
          parse: JSON.parse,
          function: ({ city }) => `It is warm in ${city}.`,
        },
      },
    ],
  });
  await runner.done();
});

await feature("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: QUESTION, max_output_tokens: 50 });
  if (!answer.output_text) throw new Error("empty");
});

await feature("responses: stream", async () => {
  const stream = client.responses.stream({ model: MODEL, input: QUESTION, max_output_tokens: 50 });
  const answer = await stream.finalResponse();
  if (!answer.output_text) throw new Error("empty");
});

await feature("models.retrieve", async () => {
  if ((await client.models.retrieve(MODEL)).id !== MODEL) throw new Error("another model");
});

await feature("embeddings", async () => {
  const found = await client.embeddings.create({ model: MODEL, input: [QUESTION, "Once upon a time"] });
  if (found.data.length !== 2 || !(found.data[0].embedding.length > 0)) throw new Error("not two vectors");
});
