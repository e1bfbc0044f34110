/* Plotly out of the page itself: gzipped, in base64, in the element "plotly". A browser that cannot unpack it says so. */
async function plotlyReady() {
  try {
    const raw = atob(document.getElementById("plotly").textContent), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
  } catch (error) {
    const said = document.createElement("p");
    said.setAttribute("role", "alert");
    said.textContent = `The charts could not be drawn (${error}). Browsers from 2023 on can: Chrome 80, Firefox 113, Safari 16.4.`;
    document.body.prepend(said);
    throw error;
  }
}
