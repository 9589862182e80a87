// The session explorer: what is chosen, and what the server says to it.
import * as api from "./api.js";
import { byId, element } from "./dom.js";
import { makeColumn } from "./lists.js";
import { makeSearch } from "./search.js";
import { makeSession } from "./session.js";

const MOST = 3; // policies side by side
const DEPTH = 100; // so far down, an item's old and new place are known
const KEPT = 200; // lists kept, so that going back a click asks nothing
const LENGTHS = [5, 10, 20, 50, 100];

const state = { session: [], chosen: [], length: 10, mode: "best", unseen: false, temperature: 1, ...fromAddress() };
let served = { policies: [], limits: { k: 1000, history: 1000 } };
let columns = new Map();
let running = new AbortController();
let tokenGiven = false; // and not yet known to be right
const kept = new Map(); // what was asked, as text → a promise of the answer
const prints = new Map(); // policy → fingerprint; another one means that it was reloaded

const showSession = makeSession({
  remove: (at) => change({ session: state.session.filter((_, place) => place !== at) }, "Removed a click."),
  clear: () => change({ session: [] }, "The session is empty."),
});
makeSearch({
  policy: () => state.chosen[0],
  take,
  drop: () => state.session.length && change({ session: state.session.slice(0, -1) }, "Removed the last click."),
  failed: trouble,
});

function take(item) {
  const session = [...state.session, item].slice(-served.limits.history);
  change({ session }, `Clicked ${item}. ${session.length} in the session.`);
}

function change(next, said) {
  Object.assign(state, next);
  if (said) byId("said").textContent = said;
  toAddress();
  showSession(state.session);
  refresh();
}

// Every choice is in the address: it can be reloaded, kept and sent to somebody.
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const length = Number(given.get("length"));
  return {
    session: given.getAll("click"),
    chosen: given.getAll("policy").slice(0, MOST),
    unseen: given.has("unseen"),
    ...(LENGTHS.includes(length) ? { length } : {}),
  };
}

function toAddress() {
  const said = new URLSearchParams();
  state.session.forEach((item) => said.append("click", item));
  state.chosen.forEach((name) => said.append("policy", name));
  said.set("length", state.length);
  if (state.unseen) said.set("unseen", "1");
  history.replaceState(null, "", `#${said}`);
}

async function start() {
  byId("failure").hidden = true;
  try {
    served = await api.policies();
  } catch (error) {
    trouble(error);
    return;
  }
  byId("token-form").hidden = true;
  byId("token-said").textContent = "";
  tokenGiven = false;
  const names = served.policies.map(({ policy }) => policy);
  state.chosen = state.chosen.filter((name) => names.includes(name));
  if (!state.chosen.length) state.chosen = names.slice(0, MOST);
  showControls();
  change({});
}

function trouble(error) {
  if (!columns.size) byId("columns").replaceChildren();
  if (error.status === 401) {
    const form = byId("token-form");
    if (tokenGiven) byId("token-said").textContent = "The server does not take this token.";
    tokenGiven = false;
    form.hidden = false;
    byId("token").focus();
    return;
  }
  byId("failure-said").textContent = error.message;
  byId("failure").hidden = false;
}

function showControls() {
  const most = Math.min(served.limits.k, ...served.policies.map(({ n_items }) => n_items));
  const lengths = LENGTHS.filter((length) => length <= most);
  if (!lengths.includes(state.length)) state.length = lengths.filter((length) => length <= 10).pop() ?? most;
  if (!lengths.length) lengths.push(most);
  byId("length").replaceChildren(
    ...lengths.map((length) => element("option", { value: length, selected: length === state.length }, String(length))),
  );
  byId("unseen").checked = state.unseen;
  document.querySelector(`input[name=mode][value=${state.mode}]`).checked = true; // browsers restore what was there
  byId("policies").replaceChildren(
    byId("policies").querySelector("legend"),
    ...served.policies.map(({ policy }) => {
      const box = element("input", { type: "checkbox", value: policy, checked: state.chosen.includes(policy) });
      return element("label", { title: policy }, box, element("span", {}, policy));
    }),
  );
  byId("policies").hidden = served.policies.length < 2;
  byId("controls").hidden = false;
  bound();
}

// Neither none nor more than three.
function bound() {
  for (const box of byId("policies").querySelectorAll("input"))
    box.disabled = box.checked ? state.chosen.length === 1 : state.chosen.length >= MOST;
}

function layColumns() {
  const facts = state.chosen.map((name) => served.policies.find(({ policy }) => policy === name));
  const fresh = new Map(facts.map((one) => [one.policy, columns.get(one.policy) ?? makeColumn(one, { take, retry: refresh })]));
  if ([...fresh.keys()].join("\n") !== [...columns.keys()].join("\n")) {
    byId("columns").replaceChildren(...[...fresh.values()].map(({ column }) => column));
  }
  columns = fresh;
  return facts;
}

async function refresh() {
  running.abort();
  const mine = (running = new AbortController());
  byId("failure").hidden = true;
  const facts = layColumns();
  const lists = await Promise.all(facts.map((one) => fill(one, mine.signal)));
  if (!mine.signal.aborted) legend(lists.filter(Boolean).flat());
}

// The rows a column now shows, or nothing where it failed.
async function fill(facts, signal) {
  const { session, length, mode, temperature } = state, drawn = mode === "drawn", column = columns.get(facts.policy);
  if (drawn && !facts.stochastic) {
    column.say("It ranks by a score and is no distribution, so no list can be drawn from it.");
    return null;
  }
  column.waiting();
  try {
    const asked = drawn ? [draw(facts, signal)] : [best(facts, session), session.length ? best(facts, session.slice(0, -1)) : null];
    const [now, before = null] = await Promise.all(asked);
    if (signal.aborted) return null;
    column.show({ now, before, length, session, drawn, temperature });
    return now.items.slice(0, length);
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return null;
    if (error.status === 401) trouble(error);
    column.fail(error.message);
    return null;
  }
}

function wish(facts, session, k) {
  const wanted = { policy: facts.policy, history: session, k: Math.min(k, served.limits.k, facts.n_items), exclude_seen: state.unseen };
  return facts.has_logging_policy ? { ...wanted, logging_probability: true } : wanted;
}

function draw(facts, signal) {
  const temperature = state.temperature;
  return api.recommend({ ...wish(facts, state.session, state.length), sample: true, temperature }, signal);
}

function best(facts, session) {
  const wanted = wish(facts, session, Math.max(state.length, DEPTH)), key = JSON.stringify(wanted);
  if (!kept.has(key)) {
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    const answer = api.recommend(wanted).then((found) => {
      const known = prints.get(facts.policy);
      prints.set(facts.policy, found.fingerprint);
      if (known && known !== found.fingerprint) kept.clear();
      return found;
    });
    kept.set(key, answer);
    answer.catch(() => kept.delete(key));
  }
  return kept.get(key);
}

// Bars of all columns share one scale, so that they can be compared.
function legend(rows) {
  const shares = rows.map(({ probability }) => probability).filter((share) => share !== null);
  const logged = rows.map((row) => row.logging_probability).filter((share) => share !== null && share !== undefined);
  byId("columns").style.setProperty("--scale", Math.max(...shares, ...logged, 1e-12));
  const words = [element("span", { class: "key pi" }, "policy π")];
  if (logged.length) words.push(element("span", { class: "key b" }, "logging policy π̂", element("sub", {}, "b")));
  if (logged.length) words.push(element("span", {}, "× how much likelier than in the log"));
  const moved = state.session.length && state.mode === "best";
  if (moved) words.push(element("span", {}, "▲▼ what the last click moved"));
  byId("columns").classList.toggle("three-lines", Boolean(moved || logged.length || state.mode === "drawn"));
  byId("legend").replaceChildren(...words);
  byId("legend").hidden = !shares.length;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useToken(byId("token").value.trim());
  tokenGiven = true;
  byId("token").value = "";
  start();
});
byId("retry").addEventListener("click", () => (served.policies.length ? refresh() : start()));
byId("again").addEventListener("click", refresh);
byId("length").addEventListener("change", (event) => change({ length: Number(event.target.value) }));
byId("unseen").addEventListener("change", (event) => change({ unseen: event.target.checked }));
byId("temperature").addEventListener("change", ({ target }) => target.value && target.checkValidity() && change({ temperature: Number(target.value) }));
byId("policies").addEventListener("change", () => {
  const chosen = [...byId("policies").querySelectorAll("input:checked")].map(({ value }) => value);
  change({ chosen });
  bound();
});
for (const radio of document.querySelectorAll("input[name=mode]"))
  radio.addEventListener("change", () => {
    byId("drawing").hidden = radio.value !== "drawn";
    change({ mode: radio.value });
  });
// The same item in every column.
for (const [name, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]])
  byId("columns").addEventListener(name, (event) => {
    const item = event.target.closest(".row")?.dataset.item;
    for (const one of byId("columns").querySelectorAll(".row")) one.classList.toggle("same", on && one.dataset.item === item);
  });

showSession(state.session);
start();
