"use strict";

// Texts of Services are only ever set as text, never as HTML.

const POLL_MS = 2000;
// More rows than this make the browser slow, and are too many to read.
const MAX_ROWS = 500;
const TONES = { Ready: "good", Unresolved: "bad", Conflict: "bad", Refused: "bad" };

const by = (id) => document.getElementById(id);
const keyOf = (link) => `${link.namespace}/${link.service}`;

let links = [];
// null if this replica doesn't know the Services that follow.
let followers = null;
// Where the Services that follow can't be read.
let followersNotice = "";
// The leader, if it is another replica.
let otherLeader = null;
let shownLeader = null;
let etag = null;
// The words that the shown names contain, and the ETag of their list.
let namesSearch = null;
let namesEtag = null;
let chosenState = null;
let openKey = null;
let openLink = null;

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function age(time) {
  const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(time)) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

function stateText(state) {
  return element("span", { className: `state ${TONES[state] || "wait"}`, textContent: state });
}

function targetText(target) {
  return target ? element("span", { textContent: target }) : element("span", { className: "none", textContent: "none" });
}

function overrideText(override) {
  return `${override.kind} ${override.namespace}/${override.name}${override.source ? `, source ${override.source}` : ""}`;
}

// A text with the age of a time, which `refreshAges` keeps up to date.
function ageText(tag, time, before = "", after = "") {
  const made = element(tag, { className: "dim" });
  Object.assign(made.dataset, { time, before, after });
  made.textContent = before + age(time) + after;
  return made;
}

// Changes nothing but the ages: the rest of the page stays selected and focused.
function refreshAges() {
  for (const made of document.querySelectorAll("[data-time]")) {
    const { time, before, after } = made.dataset;
    made.textContent = before + age(time) + after;
  }
}

function terms(pairs) {
  return pairs.flatMap(([name, value]) => [
    element("dt", { textContent: name }),
    element("dd", {}, [value]),
  ]);
}

function showInstance(instance) {
  let leader = "none";
  if (instance.leads) leader = "this replica";
  else if (instance.leader) leader = instance.leader;
  otherLeader = instance.leads ? null : instance.leader || null;
  const pairs = [
    ["replica", instance.identity],
    ["leader", leader],
    ["zones", instance.zones.join(", ") || "none"],
    ["external targets in", instance.targetNamespace],
    ["running for", age(instance.started)],
    ["version", instance.version],
  ];
  by("instance").replaceChildren(...pairs.map((pair) => element("div", {}, terms([pair]))));
}

function showStates() {
  const counts = new Map();
  for (const link of links) counts.set(link.state, (counts.get(link.state) || 0) + 1);
  if (chosenState && !counts.has(chosenState)) counts.set(chosenState, 0);
  const buttons = [...counts].sort(([a], [b]) => a.localeCompare(b)).map(([state, count]) => {
    const button = element("button", { type: "button" }, [stateText(state), ` ${count}`]);
    button.dataset.state = state;
    button.setAttribute("aria-pressed", String(state === chosenState));
    button.addEventListener("click", () => {
      chosenState = state === chosenState ? null : state;
      show();
    });
    return button;
  });
  keepingFocus(by("states"), "state", () => by("states").replaceChildren(...buttons));
}

// Runs a function that replaces the children of an element, and focuses the new child with the same data.
function keepingFocus(parent, name, replace) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset[name] : undefined;
  replace();
  if (focused === undefined) return;
  for (const child of parent.querySelectorAll("button")) {
    if (child.dataset[name] === focused) child.focus();
  }
}

function matches(link) {
  if (chosenState && link.state !== chosenState) return false;
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [keyOf(link), link.target || "", link.externalTarget || "", link.lead ? overrideText(link.lead) : "", ...link.dnsNames].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function row(link) {
  const key = keyOf(link);
  const button = element("button", { type: "button", textContent: link.service });
  button.dataset.link = key;
  button.setAttribute("aria-expanded", String(key === openKey));
  button.addEventListener("click", () => toggle(link));
  const cells = [
    element("td", { textContent: link.namespace }),
    element("td", {}, [button]),
    element("td", { textContent: link.dnsNames[0] || "none" }),
    element("td", {}, [targetText(link.target)]),
    element("td", { title: link.reason || "" }, [stateText(link.state)]),
    link.created ? ageText("td", link.created) : element("td"),
  ];
  return element("tr", { className: "link" }, cells);
}

function detail(link) {
  const history = (link.history || []).map((event) =>
    element("li", {}, [
      ageText("time", event.time, `${event.time} (`, " ago) "),
      stateText(event.state),
      " ",
      targetText(event.target),
    ]),
  );
  const pairs = [
    ...(link.reason ? [["reason", link.reason]] : []),
    ["DNS names", element("ol", {}, link.dnsNames.map((name) => element("li", { textContent: name })))],
    ["external target", link.externalTarget || "none"],
    ...(link.lead ? [["led by", overrideText(link.lead)]] : []),
    ["changes", history.length ? element("ol", {}, history) : "none since this replica has started"],
  ];
  return element("tr", { className: "detail" }, [element("td", { colSpan: 6 }, [element("dl", {}, terms(pairs))])]);
}

function show() {
  showStates();
  const shown = links.filter(matches);
  const rows = shown.slice(0, MAX_ROWS).flatMap((link) => {
    const isOpen = keyOf(link) === openKey;
    return isOpen && openLink ? [row(link), detail({ ...link, history: openLink.history })] : [row(link)];
  });
  keepingFocus(by("links"), "link", () => by("links").replaceChildren(...rows));
  by("count").textContent = shown.length === links.length ? `${links.length} links` : `${shown.length} of ${links.length} links`;
  by("more").hidden = shown.length <= MAX_ROWS;
  by("more").textContent = `These are the first ${MAX_ROWS}; search for the others.`;
  by("empty").hidden = shown.length > 0;
  by("empty").textContent = links.length ? "No link matches." : "There is no load balancer.";
}

function followerRow(follower) {
  return element("tr", {}, [
    element("td", { textContent: follower.namespace }),
    element("td", { textContent: follower.service }),
    element("td", { textContent: follower.source || "none" }),
    element("td", {}, [targetText(follower.target)]),
    element("td", {}, [stateText(follower.state), follower.reason ? ` ${follower.reason}` : ""]),
  ]);
}

function showFollowers() {
  shownLeader = otherLeader;
  const known = followers || [];
  by("following").hidden = !followers && !otherLeader;
  by("followers").replaceChildren(...known.slice(0, MAX_ROWS).map(followerRow));
  by("follower-table").hidden = known.length === 0;
  let text = "";
  if (!followers) text = `The leader, ${otherLeader}, knows them.`;
  else if (!known.length) text = "No Service follows a load balancer.";
  else if (known.length > MAX_ROWS) text = `These are the first ${MAX_ROWS}: lb-linker links --followers lists all.`;
  text = [followersNotice, text].filter(Boolean).join(". ");
  by("follower-note").hidden = !text;
  by("follower-note").textContent = text;
}

const objectText = ({ kind, namespace, name }) => `${kind} ${namespace}/${name}`;

function nameRow(view) {
  const shared = view.sharedWith || [];
  const objects = element("td", { title: shared.map(objectText).join(", "), textContent: objectText(view.object) });
  if (shared.length) objects.append(` and ${shared.length} more`);
  return element("tr", {}, [
    element("td", { textContent: view.name }),
    element("td", { textContent: view.source }),
    objects,
    element("td", {}, [targetText(view.target)]),
    element("td", { title: view.reason || "" }, [stateText(view.state)]),
    element("td", { textContent: (view.alsoAsking || []).map(objectText).join(", ") }),
  ]);
}

// Reads the names only while they are shown: there may be tens of thousands.
async function readNames() {
  if (!by("all-names").open) return;
  const search = by("search").value.trim();
  if (search !== namesSearch) namesEtag = null;
  const path = `api/names${search ? `?${new URLSearchParams({ search })}` : ""}`;
  const answer = await get(path, namesEtag ? { "If-None-Match": namesEtag } : {});
  if (answer.status === 304) return;
  const listing = await answer.json();
  if (search !== by("search").value.trim()) return;
  namesSearch = search;
  namesEtag = answer.headers.get("ETag");
  by("names").replaceChildren(...listing.items.map(nameRow));
  by("name-table").hidden = listing.items.length === 0;
  let text = "";
  if (!listing.items.length) text = search ? "No name matches." : "There is no name.";
  else if (listing.next) text = `These are the first ${listing.items.length}; search for the others.`;
  by("name-note").hidden = !text;
  by("name-note").textContent = text;
}

async function showNames() {
  try {
    await readNames();
  } catch (error) {
    problem(error.message);
  }
}

function notice(text) {
  by("notice").hidden = !text;
  by("notice").textContent = text || "";
}

function problem(text) {
  by("problem").hidden = !text;
  by("problem").textContent = text;
}

async function get(path, headers = {}) {
  const answer = await fetch(path, { headers, cache: "no-store" });
  if (!answer.ok && answer.status !== 304) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer;
}

async function readOpenLink() {
  if (!openKey) return;
  const key = openKey;
  const [namespace, service] = key.split("/");
  const answer = await get(`api/links?${new URLSearchParams({ namespace, service })}`);
  const found = (await answer.json()).items[0];
  if (key === openKey) openLink = found || null;
}

async function toggle(link) {
  openKey = keyOf(link) === openKey ? null : keyOf(link);
  openLink = null;
  try {
    await readOpenLink();
  } catch (error) {
    problem(error.message);
  }
  show();
}

async function poll() {
  if (document.hidden) return setTimeout(poll, POLL_MS);
  try {
    showInstance(await (await get("api/instance")).json());
    const answer = await get("api/links", etag ? { "If-None-Match": etag } : {});
    if (answer.status === 304) {
      refreshAges();
    } else {
      const listing = await answer.json();
      links = listing.items;
      followers = listing.followers || null;
      followersNotice = listing.followersNotice || "";
      etag = answer.headers.get("ETag");
      notice(listing.notice);
      await readOpenLink();
      show();
    }
    if (answer.status !== 304 || otherLeader !== shownLeader) showFollowers();
    await readNames();
    problem("");
  } catch (error) {
    problem(error instanceof TypeError ? "lb-linker doesn't answer; trying again" : error.message);
  }
  setTimeout(poll, POLL_MS);
}

document.addEventListener("keydown", (event) => {
  const inSearch = document.activeElement === by("search");
  if (event.key === "/" && !inSearch) {
    event.preventDefault();
    by("search").focus();
  } else if (event.key === "Escape") {
    if (inSearch) by("search").value = "";
    openKey = null;
    show();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const buttons = [...by("links").querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    const next = event.key === "ArrowDown" ? at + 1 : at - 1;
    if (at < 0 && !inSearch) return;
    event.preventDefault();
    if (next < 0) by("search").focus();
    else if (next < buttons.length) buttons[next].focus();
  }
});
by("search").addEventListener("input", () => {
  show();
  showNames();
});
by("all-names").addEventListener("toggle", showNames);
poll();
