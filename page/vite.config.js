import { defineConfig } from "vite";

// Plain files with fixed names, so that a review shows what changed and the wheel needs no node.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/watchkeeper/inspector/page",
    emptyOutDir: true,
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: "page.js", assetFileNames: "page[extname]", codeSplitting: false },
    },
  },
});
