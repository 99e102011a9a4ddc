// Keeps an open page current: when the server reports a change, load the same address again and apply the differences.
"use strict";
(() => {
  const address = document.body.dataset.live;
  const state = document.getElementById("link");
  let source, loading = false, again = false;

  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const live = () => say(document.getElementById("main").dataset.link); // the server knows whether the page is current

  // take makes a node equal to another. It keeps equal nodes, and with them focus, selection and scroll position.
  const take = (old, now) => {
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) { old.replaceWith(document.importNode(now, true)); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { old.nodeValue = now.nodeValue; return; }
    if (old.nodeName === "INPUT") return; // what the user types
    for (const a of [...old.attributes]) if (!now.hasAttribute(a.name)) old.removeAttribute(a.name);
    for (const a of now.attributes) if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
    const from = [...old.childNodes], to = [...now.childNodes];
    to.forEach((node, i) => { if (i < from.length) take(from[i], node); else old.append(document.importNode(node, true)); });
    from.slice(to.length).forEach((node) => node.remove());
  };

  const load = () => {
    if (loading) { again = true; return; }
    loading = true;
    const request = new XMLHttpRequest(); // parses a document without assigning a string as HTML
    request.responseType = "document";
    request.timeout = 20000;
    request.open("GET", location.pathname + location.search);
    request.onload = () => {
      const page = request.response;
      if (page && page.getElementById("main")) {
        take(document.getElementById("main"), page.getElementById("main"));
        take(document.querySelector("footer"), page.querySelector("footer"));
        if (source && source.readyState === EventSource.OPEN) live();
      }
      if (request.status === 401) say("This session has ended: open the new address");
    };
    request.ontimeout = () => say("Not current: stoker ui does not answer");
    request.onloadend = () => { loading = false; if (again) { again = false; load(); } };
    request.send();
  };

  const open = () => {
    if (source) return;
    source = new EventSource(address);
    source.addEventListener("open", live);
    source.addEventListener("changed", load);
    source.onerror = () => say(source && source.readyState === EventSource.CLOSED ? "No live updates: reload the page" : "Not connected to stoker ui: reconnecting");
  };
  const close = () => { if (source) { source.close(); source = undefined; } };

  // Browsers limit the connections to a server, so a page in the background closes its own.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else { load(); open(); } });
  if (!document.hidden) open();
})();
