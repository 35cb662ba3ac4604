// What is too faint: texts below 4.5 to 1 against what lies behind them (WCAG AA), and lines below 3 to 1.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script, noscript")) continue;
    texts += 1;
    const found = ratio(rgba(getComputedStyle(element).color), behind(element));
    if (found < 4.5) faint.push(`${found.toFixed(2)} ${element.tagName} ${walker.currentNode.textContent.trim().slice(0, 30)}`);
  }
  const style = getComputedStyle(document.documentElement);
  const card = rgba(style.getPropertyValue("--card"));
  const lines = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => `--c${n}`).concat(["--restart", "--diagnosis", "--trouble", "--job", "--comparison", "--gap"]);
  for (const name of lines) {
    const found = ratio(rgba(style.getPropertyValue(name)), card);
    if (found < 3) faint.push(`${found.toFixed(2)} ${name}`);
  }
  return { texts, faint };
};
