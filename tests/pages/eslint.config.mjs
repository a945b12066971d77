// What `make lint` holds the pages' scripts to, where npm is present.
const browser = ["document", "window", "location", "history", "navigator", "matchMedia", "getComputedStyle", "innerWidth",
  "innerHeight", "devicePixelRatio", "addEventListener", "requestAnimationFrame", "setTimeout", "clearTimeout", "setInterval",
  "clearInterval", "performance", "URL", "Blob", "fetch", "EventSource", "AbortController", "TextDecoder", "console",
  "sessionStorage", "localStorage", "ResizeObserver", "Event", "Node", "Element", "HTMLElement", "structuredClone", "Path2D",
  "URLSearchParams", "visualViewport", "queueMicrotask", "cancelAnimationFrame"];

export default [{
  files: ["**/*.js"],
  languageOptions: { ecmaVersion: 2023, sourceType: "module",
    globals: Object.fromEntries(browser.map((name) => [name, "readonly"])) },
  linterOptions: { reportUnusedDisableDirectives: "error" },
  rules: {
    "no-undef": "error", "no-unused-vars": "error", "no-redeclare": "error", "no-const-assign": "error",
    "no-dupe-keys": "error", "no-unreachable": "error", "no-fallthrough": "error", "no-self-assign": "error",
    "no-self-compare": "error", "no-unsafe-negation": "error", "no-unused-expressions": "error", "no-var": "error",
    "no-eval": "error", "no-implied-eval": "error", "prefer-const": "error", "eqeqeq": "error", "use-isnan": "error",
    "valid-typeof": "error", "no-loss-of-precision": "error", "array-callback-return": "error",
  },
}];
