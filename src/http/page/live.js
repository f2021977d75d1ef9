// Live refresh, and nothing else: loads the page again while somebody looks at it, and changes what is different.
"use strict";
(() => {
  const EVERY = 3000;
  const WITHIN = 15000;
  const main = document.getElementById("main");
  const stale = document.getElementById("stale");
  const button = document.getElementById("live");
  const again = main.dataset.refreshed === "again";
  let paused = false;
  let timer;

  // Makes one node like another. Elements are told by their id or key, so that a row keeps what it has: focus, selection, what is open.
  function become(node, next) {
    if (node.nodeType !== next.nodeType || node.nodeName !== next.nodeName || key(node) !== key(next)) {
      node.replaceWith(document.importNode(next, true));
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (node.data !== next.data) node.data = next.data;
      return;
    }
    for (const { name } of [...node.attributes]) {
      if (!next.hasAttribute(name) && !(node.nodeName === "DETAILS" && name === "open")) node.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
    let place = node.firstChild;
    for (const child of [...next.childNodes]) {
      const same = find(place, child);
      if (same) {
        if (same !== place) node.insertBefore(same, place);
        else place = place.nextSibling;
        become(same, child);
      } else if (place && !key(place) && !key(child) && place.nodeName === child.nodeName) {
        const here = place;
        place = place.nextSibling;
        become(here, child);
      } else {
        node.insertBefore(document.importNode(child, true), place);
      }
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  }

  function key(node) {
    return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key : undefined;
  }

  function find(from, child) {
    const wanted = key(child);
    for (let node = wanted ? from : null; node; node = node.nextSibling) {
      if (key(node) === wanted && node.nodeName === child.nodeName) return node;
    }
    return null;
  }

  async function look() {
    const answer = await fetch(location.href, {
      headers: { accept: "text/html" },
      redirect: "manual",
      signal: AbortSignal.timeout(WITHIN),
    });
    // The session is over: the page itself leads to where one logs in.
    if (answer.type === "opaqueredirect") return location.reload();
    if (answer.ok && again) return location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(page.querySelector(".said")?.textContent || `the site answers ${answer.status}`);
    const selection = getSelection();
    if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return;
    become(main, page.getElementById("main"));
    say(null);
  }

  function say(problem) {
    stale.hidden = problem === null;
    if (problem !== null && stale.textContent === "") {
      const time = new Date().toISOString().slice(11, 19);
      stale.textContent = `Not refreshed since ${time}: ${problem}. It is tried again.`;
    } else if (problem === null) {
      stale.textContent = "";
    }
  }

  async function turn() {
    clearTimeout(timer);
    if (!paused && !document.hidden) {
      try {
        await look();
      } catch (problem) {
        if (!again) say(problem.name === "TypeError" ? "the site is not reached" : problem.message);
      }
    }
    timer = setTimeout(turn, EVERY);
  }

  function show() {
    button.textContent = paused ? "Paused" : "Live";
    button.setAttribute("aria-pressed", String(!paused));
    button.title = paused ? "Refresh this page by itself again" : "Stop refreshing this page by itself";
  }

  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      show();
      if (!paused) turn();
    });
    show();
  }
  document.addEventListener("visibilitychange", () => document.hidden || turn());
  timer = setTimeout(turn, EVERY);
})();
