// The AI SDK at our server: node client.mjs URL MODEL API ABILITY. Prints what came as one line of JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [url, name, api, ability] = process.argv.slice(2);
const providers = {
  responses: () => createOpenAI({ baseURL: url, apiKey: "none" })(name),
  chat: () => createOpenAICompatible({
    name: "ours", baseURL: url, supportsStructuredOutputs: true, includeUsage: true,
  })(name),
};
const prompt = "The printer on the third floor is on fire. File a ticket for it.";
const asked = {
  model: providers[api](),
  temperature: 0,
  maxRetries: 0,
  // With a store, the SDK would send the items of an earlier step by reference.
  providerOptions: { openai: { store: false, parallelToolCalls: false }, ours: { parallel_tool_calls: false } },
};
const Ticket = z.object({
  title: z.string().max(12),
  priority: z.enum(["low", "high"]),
  open: z.boolean(),
});
const alarm = tool({
  description: "Raise an alarm.",
  inputSchema: z.object({ floor: z.literal([1, 2, 3]), loud: z.boolean() }),
  execute: async () => "It rings.",
});

const abilities = {
  async text() {
    const { text, finishReason, usage } = await generateText({ ...asked, prompt, maxOutputTokens: 8 });
    return { text, finishReason, tokens: usage.outputTokens };
  },
  async stream() {
    const result = streamText({ ...asked, prompt, maxOutputTokens: 8, onError: ({ error }) => { throw error; } });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return { text: pieces.join(""), finishReason: await result.finishReason, tokens: (await result.usage).outputTokens };
  },
  async object() {
    const { object, finishReason } = await generateObject({ ...asked, prompt, schema: Ticket, maxOutputTokens: 200 });
    const result = streamObject({ ...asked, prompt, schema: Ticket, maxOutputTokens: 200 });
    for await (const part of result.partialObjectStream) void part;
    return { object, finishReason, streamed: await result.object };
  },
  async tool() {
    const result = await generateText({
      ...asked, prompt, tools: { alarm }, maxOutputTokens: 64, stopWhen: stepCountIs(2),
      // Forced in the first step; in the second it answers.
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    return {
      steps: result.steps.map((step) => step.finishReason),
      calls: result.steps[0].toolCalls.map((call) => ({ name: call.toolName, input: call.input })),
      results: result.steps[0].toolResults.map((told) => told.output),
      text: result.text,
    };
  },
};

console.log(JSON.stringify(await abilities[ability]()));
