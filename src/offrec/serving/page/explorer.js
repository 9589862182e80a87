// The session explorer: the user's choices, and the lists that the server returns for them.
import * as api from "./api.js";
import { byId, element, printable } from "./dom.js";
import { createColumn } from "./lists.js";
import { createSearch } from "./search.js";
import { createSession } from "./session.js";

const MAX_POLICIES = 3; // columns next to each other
const COMPARED_RANKS = 100; // ranks before and after a click are known up to here
const MAX_CACHED_LISTS = 200; // so that removing a click sends no request
const LENGTHS = [5, 10, 20, 50, 100];

const state = { session: [], policies: [], length: 10, mode: "best", excludeSeen: false, temperature: 1, ...readAddress() };
let server = { policies: [], limits: { k: 1000, history: 1000 } };
let columns = new Map(); // policy name → column
let pending = new AbortController(); // the requests of the current view
let isTokenUnverified = false; // the user entered a token, and no request has succeeded with it yet
const cachedLists = new Map(); // request as JSON → promise of its response
const fingerprints = new Map(); // policy name → fingerprint; a new one means that the policy was reloaded

const showSession = createSession({
  removeClick: (position) => update({ session: state.session.filter((_, index) => index !== position) }, "Removed a click."),
  clear: () => update({ session: [] }, "The session is empty."),
});
createSearch({
  getPolicy: () => state.policies[0],
  clickItem,
  removeLastClick: () => state.session.length && update({ session: state.session.slice(0, -1) }, "Removed the last click."),
  showError: showServerError,
});

function clickItem(item) {
  const session = [...state.session, item].slice(-server.limits.history);
  update({ session }, `Clicked ${printable(item)}. Clicks in the session: ${session.length}.`);
}

function update(changes, announcement) {
  Object.assign(state, changes);
  if (announcement) byId("announcement").textContent = announcement;
  writeAddress();
  showSession(state.session);
  refresh();
}

// All choices are stored in the address, so that a view can be reloaded, bookmarked and shared.
function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const length = Number(parameters.get("length"));
  return {
    session: parameters.getAll("click"),
    policies: parameters.getAll("policy").slice(0, MAX_POLICIES),
    excludeSeen: parameters.has("exclude_seen"),
    ...(LENGTHS.includes(length) ? { length } : {}),
  };
}

function writeAddress() {
  const parameters = new URLSearchParams();
  state.session.forEach((item) => parameters.append("click", item));
  state.policies.forEach((name) => parameters.append("policy", name));
  parameters.set("length", state.length);
  if (state.excludeSeen) parameters.set("exclude_seen", "1");
  history.replaceState(null, "", `#${parameters}`);
}

async function start() {
  byId("error").hidden = true;
  try {
    server = await api.fetchPolicies();
  } catch (error) {
    showServerError(error);
    return;
  }
  byId("token-form").hidden = true;
  byId("token-error").textContent = "";
  isTokenUnverified = false;
  const names = server.policies.map(({ policy }) => policy);
  state.policies = state.policies.filter((name) => names.includes(name));
  if (!state.policies.length) state.policies = names.slice(0, MAX_POLICIES);
  showControls();
  update({});
}

function showServerError(error) {
  if (!columns.size) byId("columns").replaceChildren();
  if (error.status === 401) {
    if (isTokenUnverified) byId("token-error").textContent = "The server does not accept this token.";
    isTokenUnverified = false;
    byId("token-form").hidden = false;
    byId("token").focus();
    return;
  }
  byId("error-text").textContent = error.message;
  byId("error").hidden = false;
}

function showControls() {
  const maxLength = Math.min(server.limits.k, ...server.policies.map(({ n_items }) => n_items));
  const lengths = LENGTHS.filter((length) => length <= maxLength);
  if (!lengths.includes(state.length)) state.length = lengths.filter((length) => length <= 10).pop() ?? maxLength;
  if (!lengths.length) lengths.push(maxLength);
  byId("length").replaceChildren(
    ...lengths.map((length) => element("option", { value: length, selected: length === state.length }, String(length))),
  );
  byId("exclude-seen").checked = state.excludeSeen;
  document.querySelector(`input[name=mode][value=${state.mode}]`).checked = true; // browsers restore earlier choices
  byId("policies").replaceChildren(
    byId("policies").querySelector("legend"),
    ...server.policies.map(({ policy }) => {
      const box = element("input", { type: "checkbox", value: policy, checked: state.policies.includes(policy) });
      return element("label", { title: policy }, box, element("span", {}, policy));
    }),
  );
  byId("policies").hidden = server.policies.length < 2;
  byId("controls").hidden = false;
  limitPolicies();
}

// At least one policy and at most three are selected.
function limitPolicies() {
  for (const box of byId("policies").querySelectorAll("input"))
    box.disabled = box.checked ? state.policies.length === 1 : state.policies.length >= MAX_POLICIES;
}

function arrangeColumns() {
  const policies = state.policies.map((name) => server.policies.find(({ policy }) => policy === name));
  const callbacks = { clickItem, retry: refresh };
  const arranged = new Map(policies.map((policy) => [policy.policy, columns.get(policy.policy) ?? createColumn(policy, callbacks)]));
  if ([...arranged.keys()].join("\n") !== [...columns.keys()].join("\n")) {
    byId("columns").replaceChildren(...[...arranged.values()].map(({ column }) => column));
  }
  columns = arranged;
  return policies;
}

async function refresh() {
  pending.abort();
  const mine = (pending = new AbortController());
  byId("error").hidden = true;
  const lists = await Promise.all(arrangeColumns().map((policy) => fillColumn(policy, mine.signal)));
  if (!mine.signal.aborted) showLegend(lists.filter(Boolean).flat());
}

// Returns the rows that the column shows, or null if it shows none.
async function fillColumn(policy, signal) {
  const { session, length, mode, temperature } = state, isSampled = mode === "sampled", column = columns.get(policy.policy);
  if (isSampled && !policy.stochastic) {
    column.showText("This policy ranks by scores and is not a distribution, so its lists cannot be sampled.");
    return null;
  }
  column.showLoading();
  try {
    const requests = isSampled
      ? [sampleList(policy, signal)]
      : [bestList(policy, session), session.length ? bestList(policy, session.slice(0, -1)) : null];
    const [current, previous = null] = await Promise.all(requests);
    if (signal.aborted) return null;
    column.showList({ current, previous, length, session, isSampled, temperature });
    return current.items.slice(0, length);
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return null;
    if (error.status === 401) showServerError(error);
    column.showError(error.message);
    return null;
  }
}

function buildRequest(policy, session, k) {
  const limitedK = Math.min(k, server.limits.k, policy.n_items);
  const request = { policy: policy.policy, history: session, k: limitedK, exclude_seen: state.excludeSeen };
  return policy.has_logging_policy ? { ...request, logging_probability: true } : request;
}

function sampleList(policy, signal) {
  const request = buildRequest(policy, state.session, state.length);
  return api.recommend({ ...request, sample: true, temperature: state.temperature }, signal);
}

function bestList(policy, session) {
  const request = buildRequest(policy, session, Math.max(state.length, COMPARED_RANKS)), key = JSON.stringify(request);
  if (!cachedLists.has(key)) {
    if (cachedLists.size >= MAX_CACHED_LISTS) cachedLists.delete(cachedLists.keys().next().value);
    const promise = api.recommend(request).then((response) => {
      const known = fingerprints.get(policy.policy);
      fingerprints.set(policy.policy, response.fingerprint);
      if (known && known !== response.fingerprint) cachedLists.clear();
      return response;
    });
    cachedLists.set(key, promise);
    promise.catch(() => cachedLists.delete(key));
  }
  return cachedLists.get(key);
}

// The bars of all columns have one scale, so that they can be compared.
function showLegend(rows) {
  const probabilities = rows.map(({ probability }) => probability).filter((value) => value !== null);
  const logging = rows.map((row) => row.logging_probability).filter((value) => value !== null && value !== undefined);
  byId("columns").style.setProperty("--scale", Math.max(...probabilities, ...logging, 1e-12));
  const entries = [element("span", { class: "key pi" }, "policy π")];
  if (logging.length) {
    entries.push(element("span", { class: "key b" }, "logging policy π̂", element("sub", {}, "b")));
    entries.push(element("span", {}, "× ratio π ÷ π̂", element("sub", {}, "b")));
  }
  const hasChanges = state.session.length > 0 && state.mode === "best";
  if (hasChanges) entries.push(element("span", {}, "▲▼ change of rank by the last click"));
  byId("columns").classList.toggle("three-lines", hasChanges || logging.length > 0 || state.mode === "sampled");
  byId("legend").replaceChildren(...entries);
  byId("legend").hidden = !probabilities.length;
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.setToken(byId("token").value.trim());
  isTokenUnverified = true;
  byId("token").value = "";
  start();
});
byId("retry").addEventListener("click", () => (server.policies.length ? refresh() : start()));
byId("sample-again").addEventListener("click", refresh);
byId("length").addEventListener("change", (event) => update({ length: Number(event.target.value) }));
byId("exclude-seen").addEventListener("change", (event) => update({ excludeSeen: event.target.checked }));
byId("temperature").addEventListener("change", ({ target }) => {
  if (target.value && target.checkValidity()) update({ temperature: Number(target.value) });
});
byId("policies").addEventListener("change", () => {
  update({ policies: [...byId("policies").querySelectorAll("input:checked")].map(({ value }) => value) });
  limitPolicies();
});
for (const radio of document.querySelectorAll("input[name=mode]"))
  radio.addEventListener("change", () => {
    byId("sampling").hidden = radio.value !== "sampled";
    update({ mode: radio.value });
  });
// Highlight the same item in all columns.
for (const [name, isOver] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]])
  byId("columns").addEventListener(name, (event) => {
    const item = event.target.closest(".row")?.dataset.item;
    for (const row of byId("columns").querySelectorAll(".row")) row.classList.toggle("same", isOver && row.dataset.item === item);
  });

showSession(state.session);
start();
