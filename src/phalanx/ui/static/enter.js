// Exchange the link's key, which the browser has sent nowhere, for the cookie.
const key = location.hash.slice(1);
history.replaceState(null, "", "/enter");
const answer = await fetch("/enter", { method: "POST", headers: { "X-Phalanx-Key": key } }).catch(() => null);
if (answer?.ok) location.replace("/");
else document.getElementById("entry").textContent = answer ? await answer.text() : "`phalanx ui` does not answer.";
