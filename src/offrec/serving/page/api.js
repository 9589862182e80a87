// Requests to the server. Item ids are strings here: JavaScript numbers cannot represent integers beyond 2^53, and the
// server accepts "12" for 12.
import { rememberTitle } from "./dom.js";

let token = sessionStorage.getItem("offrec-token");

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function setToken(text) {
  token = text;
  sessionStorage.setItem("offrec-token", text);
}

export const fetchPolicies = () => send("v1/policies");

export async function searchItems(query, policy, signal) {
  const parameters = new URLSearchParams({ query, limit: 30, policy });
  const { items, titles } = await send(`v1/items?${parameters}`, { signal });
  items.forEach((item, index) => rememberTitle(String(item), titles?.[index]));
  return items.map(String);
}

// No visitor sees these lists, so they are not written to the decision log.
export async function recommend(request, signal) {
  const response = await send("v1/recommend", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, log: false }),
    signal,
  });
  response.items.forEach(({ item, title }) => rememberTitle(String(item), title));
  return { ...response, items: response.items.map((row) => ({ ...row, item: String(row.item) })) };
}

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response, text;
  try {
    response = await fetch(path, { ...options, headers });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  const content = parseJson(text);
  if (response.ok && content !== undefined) return content;
  throw new ApiError(response.status, content?.error ?? `The server answered ${response.status} without an explanation.`);
}

function parseJson(text) {
  try {
    return JSON.parse(text, (key, value, context) =>
      Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value,
    );
  } catch {
    return undefined;
  }
}
