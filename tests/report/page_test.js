// page_test.js MAKE_PAGE [NAME]: uses the pages of make_page like a person, in a headless Chromium
// without a network. Needs puppeteer-core (STFS_PUPPETEER is its folder) and Debian's chromium.
// Without them the test is skipped (status 77), or fails if STFS_REQUIRE_BROWSER=1.
'use strict';
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

const kPatience = { timeout: 60000 };

const skip = (why) => {
  console.log(`skipped: ${why}`);
  process.exit(process.env.STFS_REQUIRE_BROWSER === '1' ? 1 : 77);
};
const chromium = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(fs.existsSync);
if (!chromium) skip('no Chromium: install Debian\'s package chromium');
let puppeteer;
try {
  puppeteer = require(process.env.STFS_PUPPETEER || 'puppeteer-core');
} catch (error) {
  skip(`no puppeteer-core (${error.message}): tests/report/install_puppeteer installs it, and STFS_PUPPETEER names it`);
}

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'stfs-page-'));
const made = new Map();
const page_of = (name) => {
  if (!made.has(name)) {
    const file = path.join(folder, `${name}.html`);
    fs.writeFileSync(file, execFileSync(process.argv[2], [name], { maxBuffer: 1 << 30 }));
    made.set(name, pathToFileURL(file).href);
  }
  return made.get(name);
};

let browser;
// Opens a page and runs `act`. If `quiet`, expects no message on the console, no dialog and no
// request.
const on = async (name, act, { width = 1280, height = 800, scheme = 'light', script = true, quiet = true, hash = '' } = {}) => {
  const page = await browser.newPage();
  const said = [];
  page.setDefaultTimeout(kPatience.timeout);
  page.on('console', (message) => said.push(message.text()));
  page.on('pageerror', (error) => said.push(String(error)));
  page.on('dialog', (dialog) => { said.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => {
    const url = request.url();
    if (!url.startsWith(page_of(name)) && !url.startsWith('data:')) said.push(`asked for ${url}`);
  });
  await page.setOfflineMode(true);
  await page.setJavaScriptEnabled(script);
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme },
                                   { name: 'prefers-reduced-motion', value: 'reduce' }]);
  await page.goto(page_of(name) + hash, kPatience);
  await act(page);
  if (quiet) assert.deepEqual(said, []);
  await page.close();
};
const text = (page, selector) => page.$eval(selector, (element) => element.textContent);
const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
const until = (page, condition, ...values) => page.waitForFunction(condition, kPatience, ...values);
const focused = (page) => page.evaluate(() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent);

const tests = {
  async 'findings are on the first screen'() {
    await on('model', async (page) => {
      const found = await page.$$eval('.findings li', (items) => items.map((item) => [item.firstElementChild.textContent,
        item.getBoundingClientRect().bottom <= innerHeight]));
      assert.deepEqual(found, [['NaN', true], ['All zero', true], ['Equal tensors', true], ['Outliers', true]]);
      assert.match(await text(page, '#health'), /NaN in 1 tensor: "model\.layers\.9\.mlp\.up_proj\.weight"/);
    });
    // The place of the finding, and the command that shows the values around it.
    await on('model', async (page) => {
      await page.click('.findings a[href^="#t"]');
      const facts = await text(page, '#facts');
      assert.match(facts, /NaN12 at \[5,3\] \[7,0\] and 10 more/);
      assert.match(facts, /Largest \|x\|[\d.]+ at \[9,1\]/);
      assert.match(facts, /stfs-info cat --slice 5,0:8 --as f32 model\.safetensors model\.layers\.9\.mlp\.up_proj\.weight \| od -A n -v -t f4/);
      assert.match(facts, /Notes12 NaN, the first at \[5,3\]/);
    });
    await on('empty', async (page) => assert.match(await text(page, '#health'), /No tensors: there is nothing to check/));
  },

  async 'broken findings are red, odd findings are amber, usual findings are a grey line'() {
    await on('model', async (page) => {
      const hue = (selector) => page.$eval(selector, (element) => getComputedStyle(element).color);
      assert.equal(await hue('.findings.broken b'), 'rgb(179, 18, 29)');
      assert.equal(await hue('.findings.odd b'), 'rgb(138, 83, 0)');
      assert.match(await text(page, '.usual'), /^Usual: ones in 1 tensor/);
      assert.doesNotMatch(await text(page, '#health'), /not found:.*(outlier|unlike)/i);
      const cell = (title) => page.$eval(`#layers [title^="${title}"]`, (td) => [getComputedStyle(td).backgroundColor, td.className]);
      assert.deepEqual(await cell('layer 9, mlp.up_proj.weight'), ['rgb(207, 34, 46)', '']);
      assert.equal((await cell('layer 21, self_attn.k_proj.weight'))[1], 'odd');
      // Only broken tensors are red, and large numbers are not.
      const red = await page.$$eval('#layers tbody td', (cells) => cells.filter((td) => getComputedStyle(td).backgroundColor === 'rgb(207, 34, 46)').length);
      assert.equal(red, 4);
    });
  },

  async 'differences are on the first screen and first in the table'() {
    await on('compared', async (page) => {
      const low = await page.$eval('#difference', (part) => part.getBoundingClientRect().bottom);
      assert.ok(low < 480, `it ends at ${low}`);
      assert.match(await text(page, '#difference'), /228 of 292 tensors differ/);
      const first = await page.$$eval('#list tbody tr:not(.space)', (list) => list.slice(0, 5).map((row) => [row.cells[0].textContent, row.cells[1].textContent]));
      assert.deepEqual(first, [['lm_head.weight', 'added'], ['model.rotary.inv_freq', 'removed'],
        ['model.embed_tokens.weight', 'shape, was BF16 [32064, 4096]'], ['model.norm.weight', 'type, was BF16'],
        ['model.layers.31.self_attn.k_proj.weight', 'values']]);
      assert.match(await text(page, '#map-legend'), /equal.*added, or another shape/);
      assert.equal(await page.$eval('#map-switch [aria-pressed="true"]', (button) => button.textContent), 'Change');
      assert.equal(await page.$eval('#layers .switch [aria-pressed="true"]', (button) => button.textContent), 'Relative distance');
      await page.click('#list th.distance button');
      assert.equal(await text(page, '#list tbody tr:nth-child(2) td'), 'lm_head.weight');
      assert.equal((await page.$$('#histogram path.before')).length, 2);
    });
  },

  async 'the map orders layers by number and names tensors'() {
    await on('model', async (page) => {
      await page.waitForSelector('.box');
      const names = await page.$$eval('.box', (boxes) => boxes.map((box) => box.getAttribute('aria-label').split(',')[0]));
      assert.deepEqual(names.filter((name) => /layers/.test(name)), [...Array(32).keys()].map((i) => `model.layers.${i}`));
      assert.equal(names[0], 'model.embed_tokens.weight');
      assert.equal(names.at(-1), 'lm_head.weight');
      assert.match(await text(page, '#map-legend'), /1 outlined: the farthest is model\.layers\.21\.self_attn\.k_proj\.weight \(4\.2 ×\)/);
      const box = await page.$('.box[aria-label^="model.layers.7,"]');
      const { x, y, width } = await box.boundingBox();
      await page.mouse.move(x + width / 4, y + 60);
      await until(page, () => /^model\.layers\.7\.mlp\..*MiB, RMS/.test(document.querySelector('#map-read').textContent));
    });
  },

  async 'a report of two tensors has no map and a low table'() {
    await on('two', async (page) => {
      assert.equal(await page.$eval('#map', (part) => part.hidden), true);
      const high = await page.$eval('#scroll', (part) => part.getBoundingClientRect().height);
      assert.ok(high < 110, `${high} pixels for two rows`);
      assert.equal(await text(page, '#found'), '2 tensors');
    });
  },

  async 'notes are visible at 1280 pixels, and a phone shows one chosen column'() {
    await on('compared', async (page) => {
      const right = await page.$eval('#list th.notes', (th) => th.getBoundingClientRect().right);
      assert.ok(right < 1280, `notes end at ${right}`);
    });
    await on('compared', async (page) => {
      assert.deepEqual(await page.$$eval('#list th', (cells) => cells.map((th) => th.className.split(' ')[0])), ['name', 'distance']);
      await page.select('#list th select', 'equal');
      await until(page, () => document.querySelector('#list th:nth-child(2)').classList.contains('equal'));
      assert.match(await text(page, '#list tbody tr:nth-child(8) td:nth-child(2)'), /%$/);
    }, { width: 390, height: 844 });
  },

  async 'the sections have a fixed order'() {
    await on('compared', async (page) => {
      const parts = await page.$$eval('section:not([hidden])', (sections) => sections.map((section) => section.id));
      assert.deepEqual(parts, ['difference', 'what', 'health', 'map', 'layers', 'tensors', 'tensor']);
    });
  },

  async 'mouse and keyboard open and leave levels of the treemap'() {
    await on('model', async (page) => {
      await page.waitForSelector('.box');
      const colors = await page.$eval('#boxes canvas', (canvas) => {
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < pixels.length; i += 404) seen.add(pixels.slice(i, i + 4).join());
        return seen.size;
      });
      assert.ok(colors > 1, 'the treemap is drawn');
      await page.click('.box[aria-label^="model.layers.7,"]');
      await until(page, () => document.querySelector('#crumbs').textContent.startsWith('All tensors › model › layers › 7 '));
      await page.waitForSelector('.box[aria-label^="mlp.gate_proj.weight,"]');
      assert.match(await focused(page), /^mlp\./);
      const before = await focused(page);
      await page.keyboard.press('ArrowRight');
      assert.notEqual(await focused(page), before);
      await page.keyboard.press('Enter');
      await until(page, () => /^#t\d+$/.test(location.hash));
      assert.match(await text(page, '#tensor-heading'), /^model\.layers\.7\.mlp\./);
      await page.focus('.box[tabindex="0"]');
      await page.keyboard.press('Escape');
      await until(page, () => document.querySelector('#crumbs b').textContent === 'layers');
      assert.match(await text(page, '#map-legend'), /broken/);
      await page.click('#map-switch button:first-child');
      assert.equal(await text(page, '#map-legend'), 'BF16F32');
    });
  },

  async 'mouse and keyboard select numbers of the layers'() {
    await on('model', async (page) => {
      assert.equal((await page.$$('#layers tbody tr')).length, 32);
      assert.equal((await page.$$('#layers tbody td')).length, 32 * 9);
      assert.match(await page.$eval('#layers [title^="layer 9, mlp.up_proj.weight"]', (cell) => cell.textContent), /NaN/);
      await page.click('#layers .switch button:nth-child(3)');
      await until(page, () => document.querySelector('#layers [title^="layer 30, mlp.up_proj.weight"]').textContent === '100 %');
      await page.focus('#layers td[tabindex="0"]');
      await page.keyboard.press('ArrowDown');
      await page.keyboard.press('ArrowRight');
      assert.match(await focused(page), /^layer 1, mlp\.down_proj\.weight/);
      await page.keyboard.press('Enter');
      await until(page, () => document.querySelector('#tensor-heading').textContent === 'model.layers.1.mlp.down_proj.weight');
    });
  },

  async 'the table sorts and searches'() {
    await on('model', async (page) => {
      const first = () => text(page, '#list tbody tr:nth-child(2) td');
      assert.equal(await first(), 'lm_head.weight');
      await page.click('#list th.std button');
      assert.equal(await first(), 'model.norm.weight');
      assert.equal(await page.$eval('#list th.std', (th) => th.getAttribute('aria-sort')), 'descending');
      await page.click('#list th.std button');
      assert.match(await first(), /layers\.30\.mlp/);
      await page.click('#list th.std button');
      assert.equal(await first(), 'lm_head.weight');
      await page.type('#search input', 'LAYERS.3. mlp');
      await until(page, () => document.querySelector('#found').textContent === '3 of 291 tensors');
      assert.deepEqual(await texts(page, '#list tbody a'),
                       ['down', 'gate', 'up'].map((role) => `model.layers.3.mlp.${role}_proj.weight`));
      await page.click('#list tbody a');
      await until(page, () => document.querySelector('#tensor-heading').textContent === 'model.layers.3.mlp.down_proj.weight');
    });
  },

  async 'the selected tensor has a histogram and a picture'() {
    await on('model', async (page) => {
      assert.equal(await text(page, '#tensor-heading'), 'model.layers.9.mlp.up_proj.weight');
      assert.equal((await page.$$('#histogram svg path')).length, 2);
      const colors = await page.$eval('#thumbnail canvas', (canvas) => new Set(
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size);
      assert.ok(colors > 10, 'the picture is drawn');
      await page.click('#next');
      await until(page, () => document.querySelector('#tensor-heading').textContent === 'model.layers.9.post_attention_layernorm.weight');
    });
    await on('model', async (page) => assert.equal(await text(page, '#tensor-heading'), 'lm_head.weight'), { hash: '#t0' });
  },

  async 'a table of 100,000 rows scrolls'() {
    await on('large', async (page) => {
      await page.waitForSelector('#list tbody a');
      await page.$eval('#scroll', (scroll) => { scroll.scrollTop = scroll.scrollHeight; });
      await until(page, () => document.querySelector('#list tbody a[href="#t99999"]'));
      assert.ok((await page.$$('#list tbody tr')).length < 300);
      // The row height that script.js assumes.
      assert.equal(await page.$eval('#list tbody tr:nth-child(2)', (row) => row.getBoundingClientRect().height), 28);
      const lies = await page.evaluate(() => {
        const outer = document.querySelector('#scroll').getBoundingClientRect();
        const inner = document.querySelector('#list tbody a[href="#t99999"]').getBoundingClientRect();
        return inner.top >= outer.top && inner.bottom <= outer.bottom;
      });
      assert.ok(lies, 'the last row is visible');
      await page.$eval('#scroll', (scroll) => { scroll.scrollTop = 28 * 50000; });
      await until(page, () => document.querySelector('#list tbody a[href="#t50003"]'));
      await page.click('#list th.std button');
      await page.type('#search input', 'layers.64. experts.511. up_proj');
      await until(page, () => document.querySelector('#found').textContent === '1 of 100,000 tensors');
      await page.waitForSelector('.experts canvas');
      await page.focus('.experts canvas');
      await page.keyboard.press('ArrowDown');
      assert.match(await text(page, '.experts .readout'), /^expert 1, layer 0: RMS/);
      // A cell of the layers selects only its own tensors, and no tensors of layer 16 or other
      // layers.
      await page.$eval('#layers [title^="layer 6, mlp.experts.*.up_proj.weight"]', (cell) => cell.click());
      await until(page, () => document.querySelector('#found').textContent === '512 of 100,000 tensors');
      assert.match(await text(page, '#list tbody a'), /^model\.layers\.6\.mlp\.experts\.\d+\.up_proj/);
      await page.type('#search input', 'experts.511.');
      await until(page, () => document.querySelector('#found').textContent === '1 of 100,000 tensors');
      await page.$eval('#found + button', (button) => button.click());
      await until(page, () => document.querySelector('#found').textContent === '100,000 tensors');
      assert.equal(await page.$eval('#found + button', (button) => button.hidden), true);
    });
  },

  async 'the page has enough contrast in dark and light mode'() {
    const backs = [];
    for (const scheme of ['light', 'dark']) {
      await on('model', async (page) => {
        backs.push(await page.$eval('body', (body) => getComputedStyle(body).backgroundColor));
        const weak = await page.evaluate(() => {
          const light = (color) => {
            const [red, green, blue] = (color.match(/[\d.]+/g) ?? []).map((c) => {
              const x = c / 255;
              return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
          };
          const back = (element) => {
            for (let at = element; at; at = at.parentElement) {
              const color = getComputedStyle(at).backgroundColor;
              if (color !== 'rgba(0, 0, 0, 0)') return color;
            }
            return 'rgb(255, 255, 255)';
          };
          const found = [];
          for (const element of document.querySelectorAll('h1, h2, h3, p, a, b, span, dt, dd, th, td, li, button, label, figcaption, summary')) {
            if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '')) continue;
            if (element.disabled || element.offsetParent === null) continue;
            const [a, b] = [light(getComputedStyle(element).color), light(back(element))].sort((x, y) => y - x);
            if ((a + 0.05) / (b + 0.05) < 4.5) found.push([element.textContent, (a + 0.05) / (b + 0.05)]);
          }
          return found;
        });
        assert.deepEqual(weak, []);
        assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
      }, { scheme });
    }
    assert.notEqual(backs[0], backs[1]);
  },

  async 'the page fits 400 pixels'() {
    for (const name of ['model', 'compared', 'hostile', 'large', 'empty']) {
      await on(name, async (page) => {
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 400, `${name} is ${width} pixels wide`);
      }, { width: 400 });
    }
  },

  async 'the tables are shown without JavaScript'() {
    await on('compared', async (page) => {
      const seen = await page.evaluate(() => document.body.innerText);
      assert.match(seen, /example-7b/);
      assert.match(seen, /NaN in 1 tensor/);
      assert.match(seen, /model\.layers\.31\.self_attn\.v_proj\.weight/);
      assert.match(seen, /1 removed/);
      assert.doesNotMatch(seen, /Where the bytes are/);
      assert.equal((await page.$$('noscript tbody tr')).length, 292);
      // The link of a finding points to its row.
      const href = await page.$eval('.findings a', (link) => link.getAttribute('href'));
      assert.match(await text(page, `noscript ${href} td`), /layers\.9\.mlp\.up_proj/);
    }, { script: false });
  },

  async 'the keyboard reaches all sections'() {
    await on('compared', async (page) => {
      const reached = new Set();
      for (let i = 0; i < 120; ++i) {
        await page.keyboard.press('Tab');
        reached.add(await page.evaluate(() => {
          const part = document.activeElement.closest('section');
          return part ? part.id : '';
        }));
      }
      for (const part of ['what', 'health', 'map', 'layers', 'tensors', 'tensor']) assert.ok(reached.has(part), part);
    });
    await on('model', async (page) => {
      await page.focus('.findings a');
      await page.keyboard.press('Enter');
      await until(page, () => document.activeElement.id === 'tensor-heading');
      await page.focus('#list td a[tabindex="0"]');
      for (let i = 0; i < 40; ++i) await page.keyboard.press('ArrowDown');
      assert.equal(await page.evaluate(() => document.activeElement.getAttribute('href')), '#t40');
      await page.keyboard.press('End');
      assert.equal(await focused(page), 'model.norm.weight');
      await page.keyboard.press('Enter');
      await until(page, () => document.querySelector('#tensor-heading').textContent === 'model.norm.weight');
      await page.focus('#list th.bytes button');
      await page.keyboard.press('Space');
      assert.equal(await page.$eval('#list th.bytes', (th) => th.getAttribute('aria-sort')), 'descending');
    });
  },

  async 'every control has a name for screen readers'() {
    for (const name of ['model', 'compared', 'large']) {
      await on(name, async (page) => {
        const nameless = await page.$$eval('button, a, input, select, canvas:not([aria-hidden])', (elements) => elements
          .filter((element) => !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length))
          .map((element) => element.outerHTML));
        assert.deepEqual(nameless, []);
        const ids = await page.$$eval('[id]', (elements) => elements.map((element) => element.id));
        assert.equal(new Set(ids).size, ids.length, 'ids are unique');
      });
    }
  },

  async 'hostile names cannot inject markup or script'() {
    await on('hostile', async (page) => {
      assert.equal(await page.evaluate(() => window.broken), undefined);
      assert.equal(await page.title(), "</title><script>document.title='broken'</script>");
      assert.equal(await page.evaluate(() => document.scripts.length), 2);
      assert.equal(await page.evaluate(() => document.querySelectorAll('img, iframe, object, embed, base, form, s, u').length), 0);
      const names = await texts(page, '#list tbody a');
      assert.equal(names.length, 23);
      for (const name of ['(no name)', '</script><script>window.broken=1</script>', '<!-- <script>', '&lt;b&gt;&amp;amp;',
                          'quote"\'`quote', 'line\\nfeed\\r\\ttab<td>cell', '__proto__', '{{script}}{{data}}']) {
        assert.ok(names.includes(name), name);
      }
      assert.ok(names.some((name) => name.startsWith('right\\u202eto\\u2066left\\u200f')));
      for (let i = 0; i < names.length; ++i) {
        await page.goto(page_of('hostile') + '#t' + i);
        await until(page, (name) => document.querySelector('#tensor-heading').textContent === name, names[i]);
        assert.doesNotMatch(await text(page, '#facts'), /ValuesNaN|\(NaN/);
      }
      for (const box of await page.$$('.box')) assert.ok(await box.evaluate((element) => element.getAttribute('aria-label')));
    });
  },

  async 'only the script and style of the page may run'() {
    await on('model', async (page) => {
      const ran = await page.evaluate(async () => {
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        const image = await new Promise((done) => {
          const element = new Image();
          element.onload = () => done(true);
          element.onerror = () => done(false);
          element.src = 'http://127.0.0.1:9/';
        });
        const fetched = await fetch('http://127.0.0.1:9/').then(() => true, () => false);
        return [window.ran === true, image, fetched];
      });
      assert.deepEqual(ran, [false, false, false]);
    }, { quiet: false });
  },

  async 'the first line of a run names the version that broke'() {
    await on('run', async (page) => {
      const low = await page.$eval('.verdict', (line) => line.getBoundingClientRect().bottom);
      assert.ok(low < 220, `it ends at ${low}`);
      assert.equal(await text(page, '.verdict'), 'step-8000 is the first that is broken: NaN or infinity in "model.layers.9.mlp.up_proj.weight"');
      assert.equal((await page.$$('#whole figure')).length, 4);
      assert.equal((await page.$$('#rms figure')).length, 12);
      assert.equal((await page.$$('#distance path.lost')).length, 1);
      assert.match(await text(page, '.run tbody tr'), /^model\.layers\.9\.mlp\.up_proj\.weight.*step-8000/);
    });
    for (const scheme of ['light', 'dark']) {
      await on('run', async (page) => {
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390);
        const back = await page.$eval('#rms svg', (svg) => getComputedStyle(svg).backgroundColor);
        assert.equal(back, scheme === 'dark' ? 'rgb(22, 27, 34)' : 'rgb(246, 248, 250)');
      }, { width: 390, scheme });
    }
  },

  async 'two checkpoints are compared by layer'() {
    await on('compared', async (page) => {
      const counts = await text(page, '#difference .checks');
      for (const count of ['64 equal', '1 changed in shape', '1 changed in type', '1 added', '1 removed']) assert.ok(counts.includes(count), count);
      assert.equal((await page.$$('#layers tbody td')).length, 32 * 9);
      await page.click('#layers .switch button:nth-child(2)');
      await until(page, () => /%$/.test(document.querySelector('#layers td').textContent));
      assert.equal(await page.$eval('#layers [title^="layer 3, mlp.up_proj.weight"]', (cell) => cell.textContent), '>99.9 %');
      await page.click('#list th.distance button');
      assert.equal(await page.$eval('#list th.distance', (th) => th.getAttribute('aria-sort')), 'descending');
    });
    // A dark page has no white cells.
    await on('compared', async (page) => {
      const white = await page.$$eval('#layers td', (cells) => cells.filter((td) => /^rgb\((2[34]\d|25\d), (2[34]\d|25\d), (2[34]\d|25\d)\)/.test(getComputedStyle(td).backgroundColor)).length);
      assert.equal(white, 0);
    }, { scheme: 'dark' });
  },
};

(async () => {
  browser = await puppeteer.launch({
    executablePath: chromium, headless: true, pipe: true, env: { ...process.env, HOME: folder }, timeout: kPatience.timeout, protocolTimeout: kPatience.timeout,
    userDataDir: path.join(folder, 'profile'),
    args: ['--disable-gpu', '--disable-dev-shm-usage', ...(process.getuid() === 0 ? ['--no-sandbox'] : [])],
  });
  let failed = 0;
  const [, , , only = ''] = process.argv;
  const chosen = Object.entries(tests).filter(([name]) => name.includes(only));
  for (const [name, test] of chosen) {
    try {
      await test();
      console.log(`ok: ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAILED: ${name}\n${error.stack}`);
    }
  }
  await browser.close();
  console.log(`${chosen.length - failed} passed, ${failed} failed`);
  process.exitCode = failed > 0 ? 1 : 0;
})().catch((error) => {
  console.log(error.stack);
  process.exitCode = 1;
}).finally(() => fs.rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
