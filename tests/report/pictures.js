// pictures.js MAKE_PAGE DIRECTORY: makes the pictures report-*.png of docs/ again. It has the same
// requirements as page_test.js:
//   STFS_PUPPETEER=$(tests/report/install_puppeteer ~/.cache/stfs-tests) \
//     node tests/report/pictures.js build/dev/tests/report/make_page docs
'use strict';
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const puppeteer = require(process.env.STFS_PUPPETEER || 'puppeteer-core');

const [, , make_page, directory] = process.argv;
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'stfs-pictures-'));
(async () => {
  const browser = await puppeteer.launch({
    executablePath: '/usr/bin/chromium', headless: true, pipe: true, env: { ...process.env, HOME: folder }, userDataDir: path.join(folder, 'profile'),
    args: ['--disable-gpu', '--hide-scrollbars', ...(process.getuid() === 0 ? ['--no-sandbox'] : [])],
  });
  for (const [name, which, scheme] of [['light', 'model', 'light'], ['dark', 'model', 'dark'], ['against', 'compared', 'light'], ['run', 'run', 'light']]) {
    const file = path.join(folder, `${name}.html`);
    fs.writeFileSync(file, execFileSync(make_page, [which], { maxBuffer: 1 << 30 }));
    const page = await browser.newPage();
    await page.setViewport({ width: 1040, height: 780 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    await page.goto(pathToFileURL(file).href);
    await page.waitForSelector(which === 'run' ? '.charts svg' : '.box');
    await page.screenshot({ path: path.join(directory, `report-${name}.png`) });
  }
  await browser.close();
})().finally(() => fs.rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
