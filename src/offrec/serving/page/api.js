// The server's answers. Ids are text throughout: a whole number beyond 2^53 is read as it was written, and the server
// takes "12" for 12.

let token = sessionStorage.getItem("offrec-token");

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function useToken(text) {
  token = text;
  sessionStorage.setItem("offrec-token", text);
}

export const policies = () => ask("v1/policies");

export async function items(query, policy, signal) {
  const asked = new URLSearchParams({ query, limit: 30, policy });
  return (await ask(`v1/items?${asked}`, { signal })).items.map(String);
}

// What people look at here was shown to no visitor, so it stays out of the decision log.
export async function recommend(wanted, signal) {
  const body = JSON.stringify({ ...wanted, log: false });
  const found = await ask("v1/recommend", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body,
    signal,
  });
  return { ...found, items: found.items.map((row) => ({ ...row, item: String(row.item) })) };
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer, text;
  try {
    answer = await fetch(path, { ...options, headers });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  const read = parsed(text);
  if (answer.ok && read !== undefined) return read;
  throw new Refused(answer.status, read?.error ?? `The server answered ${answer.status} and nothing that can be read.`);
}

function parsed(text) {
  try {
    return JSON.parse(text, (key, value, context) =>
      Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value,
    );
  } catch {
    return undefined;
  }
}
