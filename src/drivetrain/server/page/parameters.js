// The parameters that the settings offer: what each is called, its range, and what it does.

import { limit } from "./model.js";

/** What is typed into a field of several lines: `read` gives the value, if there is one, and what is wrong with it. */
const STOPS = {
  rows: 2,
  read(text, model) {
    const most = limit(model, "max_stops", 16);
    const stops = text.split("\n").filter(Boolean).map(unescaped);
    if (stops.length > most) return { wrong: `At most ${most} are allowed.` };
    return { value: stops.length ? stops : undefined };
  },
  write: (stops) => stops.map(escaped).join("\n"),
};

const SCHEMA = {
  rows: 4,
  read(text) {
    if (!text.trim()) return {};
    try {
      const schema = JSON.parse(text);
      if (!schema || typeof schema !== "object" || Array.isArray(schema)) return { wrong: "A schema is an object." };
      return { value: { type: "json_schema", json_schema: { name: "answer", schema } } };
    } catch (error) {
      return { wrong: `This is not JSON: ${error.message}` };
    }
  },
  write: ({ json_schema: { schema } }) => JSON.stringify(schema, null, 2),
};

export const GROUPS = [
  {
    title: "Randomness",
    controls: [
      {
        name: "temperature",
        label: "Temperature",
        min: 0,
        max: 2,
        step: 0.05,
        neutral: 1,
        help: "0 always takes the likeliest token; higher is more varied.",
      },
      {
        name: "top_p",
        label: "Top p",
        min: 0.01,
        max: 1,
        step: 0.01,
        neutral: 1,
        help: "Keeps the likeliest tokens that together have this probability.",
      },
      {
        name: "top_k",
        label: "Top k",
        min: 0,
        integer: true,
        neutral: "off",
        help: "Keeps this many of the likeliest tokens; 0 is off.",
      },
      {
        name: "min_p",
        label: "Min p",
        min: 0,
        max: 1,
        step: 0.01,
        neutral: 0,
        help: "Drops tokens below this fraction of the likeliest one's probability.",
      },
      {
        name: "seed",
        label: "Seed",
        min: Number.MIN_SAFE_INTEGER,
        max: Number.MAX_SAFE_INTEGER,
        integer: true,
        neutral: "random",
        help: "The same seed gives the same answer.",
      },
    ],
  },
  {
    title: "Repetition",
    controls: [
      {
        name: "repetition_penalty",
        label: "Repetition penalty",
        min: 0.05,
        max: 2,
        most: 10,
        step: 0.05,
        neutral: 1,
        help: "Above 1 discourages repetition.",
      },
      {
        name: "presence_penalty",
        label: "Presence penalty",
        min: -2,
        max: 2,
        step: 0.1,
        neutral: 0,
        help: "Makes tokens that were already used less likely.",
      },
      {
        name: "frequency_penalty",
        label: "Frequency penalty",
        min: -2,
        max: 2,
        step: 0.1,
        neutral: 0,
        help: "Makes tokens less likely each time they are used.",
      },
      {
        name: "max_repetitions",
        label: "End loops after",
        min: 0,
        integer: true,
        neutral: "off",
        help: "Ends an answer that has said the same this many times in a row; below 2, never.",
      },
    ],
  },
  {
    title: "Length and stops",
    controls: [
      { name: "max_tokens", label: "Longest answer", min: 1, integer: true, neutral: "no limit", help: "In tokens." },
      {
        name: "min_tokens",
        label: "Shortest answer",
        min: 0,
        integer: true,
        neutral: "0",
        help: "In tokens; no stop takes effect before.",
      },
      { name: "stop", label: "Stop at", lines: STOPS, help: "One per line. Write \\n for a new line, \\t for a tab." },
    ],
  },
  {
    title: "JSON output",
    controls: [
      {
        name: "response_format",
        label: "JSON schema",
        lines: SCHEMA,
        ofChat: true,
        help: "For this conversation only: its answers are JSON of this schema. Ask for it in the message too.",
      },
    ],
  },
];

const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\" };
const unescaped = (text) => text.replace(/\\([ntr\\])/g, (_, c) => ESCAPES[c]);
const escaped = (text) =>
  text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t").replaceAll("\r", "\\r");
