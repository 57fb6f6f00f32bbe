// Vercel's AI SDK with its two providers for servers of this kind.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { feature, BASE_URL, MODEL, QUESTION } from "./check.mjs";

const compatible = createOpenAICompatible({
  name: "penstock",
  baseURL: BASE_URL,
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const openai = createOpenAI({ baseURL: BASE_URL, apiKey: "none" });
const schema = z.object({ city: z.string(), country: z.string() });
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `It is warm in ${city}.`,
});
const models = {
  "openai-compatible": compatible(MODEL),
  "openai: chat": openai.chat(MODEL),
  "openai: responses": openai(MODEL),
};

for (const [name, model] of Object.entries(models)) {
  const common = { model, prompt: QUESTION, maxRetries: 0, maxOutputTokens: 200 };

  await feature(`${name}: generateText`, async () => {
    if (!(await generateText(common)).text) throw new Error("empty");
  });

  await feature(`${name}: streamText`, async () => {
    const result = streamText({ ...common, onError: () => {} });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    if (!text || !(await result.usage).totalTokens) throw new Error("empty");
  });

  await feature(`${name}: generateObject`, async () => {
    schema.parse((await generateObject({ ...common, schema, temperature: 0 })).object);
  });

  await feature(`${name}: streamObject`, async () => {
    const result = streamObject({ ...common, schema, temperature: 0 });
    let last;
    for await (const partial of result.partialObjectStream) last = partial;
    schema.parse(last);
  });

  await feature(`${name}: tools`, async () => {
    const result = await generateText({ ...common, tools: { weather }, toolChoice: "required" });
    if (!result.toolCalls.length) throw new Error("no call");
  });
}

for (const [name, model] of Object.entries({
  "openai-compatible": compatible.textEmbeddingModel(MODEL),
  openai: openai.textEmbeddingModel(MODEL),
})) {
  await feature(`${name}: embedMany`, async () => {
    const { embeddings } = await embedMany({ model, values: [QUESTION, "Once upon a time"] });
    if (embeddings.length !== 2) throw new Error("not two vectors");
  });
}
