// kubernetes_test.mjs SOURCE BUILD: checks that the Kubernetes API accepts the manifests of docs/examples/kubernetes,
// that they give a reason for each permission, and that they call stfs with options and variables that it knows.
// STFS_KUBERNETES is the folder that install_kubernetes made. Without it the test is skipped, or fails if
// STFS_REQUIRE_KUBERNETES=1.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [source, build] = process.argv.slice(2);
const installed = process.env.STFS_KUBERNETES;
if (!installed) {
  console.log('skipped: STFS_KUBERNETES is not set: STFS_KUBERNETES=$(tests/docs/install_kubernetes DIRECTORY) has the schemas');
  process.exit(process.env.STFS_REQUIRE_KUBERNETES === '1' ? 1 : 77);
}
const modules = join(installed, 'node_modules');
const load = (path) => import(pathToFileURL(join(modules, path)));
const YAML = (await load('yaml/dist/index.js')).default;

// ---- The schema

// Wraps a value so that `unread` contains the paths of all properties that were not read. The validators read exactly
// the properties in their schema, so the rest is unknown.
function watched(value, path, unread) {
  if (value === null || typeof value !== 'object') return value;
  const children = new Map();
  if (!Array.isArray(value)) for (const key of Object.keys(value)) unread.add(`${path}/${key}`);
  return new Proxy(value, {
    get(target, key) {
      if (!Object.hasOwn(target, key)) return target[key];
      unread.delete(`${path}/${String(key)}`);
      if (!children.has(key)) children.set(key, watched(target[key], `${path}/${String(key)}`, unread));
      return children.get(key);
    },
  });
}

async function against_schema(object) {
  const [, group, version] = /^(?:([^/]*)\/)?([^/]*)$/.exec(object.apiVersion ?? '') ?? [];
  const word = (group ?? 'core').split('.')[0];
  const name = `IoK8sApi${word[0]?.toUpperCase()}${word.slice(1)}${version?.[0]?.toUpperCase()}${version?.slice(1)}${object.kind}`;
  const file = `kubernetes-models/_schemas/${name}.js`;
  if (!existsSync(join(modules, file))) return [`the API has no ${object.kind} in ${object.apiVersion}`];
  const { validate } = await load(file);
  const unread = new Set();
  const wrong = [];
  if (!validate(watched(object, '', unread))) {
    for (const { instancePath, keyword, params } of validate.errors) wrong.push(`${instancePath}: ${keyword} ${JSON.stringify(params)}`);
  }
  for (const path of unread) wrong.push(`${path}: unknown field`);
  return wrong;
}

// ---- Rules that the schema lacks

const kWords = {
  restartPolicy: ['Always', 'Never', 'OnFailure'], mountPropagation: ['None', 'HostToContainer', 'Bidirectional'],
  medium: ['', 'Memory'], type: ['RuntimeDefault', 'Unconfined', 'Opaque'], imagePullPolicy: ['Always', 'IfNotPresent', 'Never'],
};
function* misspelt(value, path = '') {
  if (value === null || typeof value !== 'object') return;
  for (const [key, inner] of Object.entries(value)) {
    if (typeof inner === 'string' && Object.hasOwn(kWords, key) && !kWords[key].includes(inner)) yield `${path}/${key}: not ${inner}`;
    yield* misspelt(inner, `${path}/${key}`);
  }
}

// Each line that grants a permission must state the reason after a #.
const kPermission = /privileged: true|allowPrivilegeEscalation: true|\badd:|mountPropagation: Bidirectional|Unconfined|runAsUser: 0|hostPath:|hostNetwork: true|hostPID: true/;
function* unexplained(text) {
  for (const [number, line] of text.split('\n').entries()) {
    const [code, ...reason] = line.split(' #');
    if (kPermission.test(code) && !code.trimStart().startsWith('#') && reason.join('').trim().length < 10) {
      yield `line ${number + 1}: a permission without a reason: ${line.trim()}`;
    }
  }
}

const same = (left, right) => JSON.stringify(left) === JSON.stringify(right);

function* about_container(container, pod) {
  const context = container.securityContext ?? {};
  const place = container.name;
  if (context.readOnlyRootFilesystem !== true) yield `${place}: the root is not read-only`;
  if (!same(context.capabilities?.drop, ['ALL'])) yield `${place}: capabilities are not dropped`;
  if (![true, false].includes(context.allowPrivilegeEscalation)) yield `${place}: allowPrivilegeEscalation is not set`;
  for (const kind of ['requests', 'limits']) {
    for (const what of ['cpu', 'memory']) if (!container.resources?.[kind]?.[what]) yield `${place}: no ${kind} of ${what}`;
  }
  // The API checks this itself, but it is not in the schema.
  if (context.allowPrivilegeEscalation === false && (context.privileged || context.capabilities?.add?.includes('SYS_ADMIN'))) {
    yield `${place}: allowPrivilegeEscalation is false with a permission that needs it`;
  }
  for (const mount of container.volumeMounts ?? []) {
    if (mount.mountPropagation === 'Bidirectional' && !context.privileged) yield `${place}: only a privileged container may have Bidirectional`;
    if (!pod.volumes?.some((volume) => volume.name === mount.name)) yield `${place}: no volume ${mount.name}`;
  }
  const cache = container.env?.find(({ name }) => name === 'STFS_CACHE')?.value;
  const holder = container.volumeMounts?.find((mount) => cache?.startsWith(`${mount.mountPath}/`) || cache === mount.mountPath);
  // A volume belongs to root, and stfs rejects a cache that belongs to another user.
  if (holder?.mountPath === cache && cache) yield `${place}: STFS_CACHE is a volume itself`;
  // The kubelet evicts a pod if a volume exceeds its limit.
  const bound = /cache[-_]size[= ](\d+)G/.exec((container.args ?? []).join(' '))?.[1];
  const limit = pod.volumes?.find((volume) => volume.name === holder?.name)?.emptyDir?.sizeLimit;
  if (bound && !(Number(bound) < Number(/^(\d+)Gi$/.exec(limit ?? '')?.[1]))) yield `${place}: the cache may grow over sizeLimit`;
  if (!/:[^/:]+$/.test(container.image)) yield `${place}: the image has no version`;
}

function* about_pod(pod) {
  const context = pod.securityContext ?? {};
  if (pod.automountServiceAccountToken !== false) yield 'automountServiceAccountToken is not false';
  if (context.runAsNonRoot !== true || context.runAsUser !== 65534) yield 'not the user 65534';
  if (context.seccompProfile?.type !== 'RuntimeDefault') yield 'seccompProfile is not RuntimeDefault';
  for (const volume of pod.volumes ?? []) if (volume.emptyDir && !volume.emptyDir.sizeLimit) yield `${volume.name}: no sizeLimit`;
  for (const container of [...(pod.initContainers ?? []), ...pod.containers]) yield* about_container(container, pod);
  for (const container of pod.initContainers ?? []) {
    if (container.restartPolicy === 'Always' && !container.startupProbe) yield `${container.name}: a sidecar without startupProbe`;
  }
  const probed = pod.containers.some((container) => container.startupProbe || container.readinessProbe);
  if (pod.restartPolicy !== 'Never' && !probed) yield 'no container has a probe';
}

// ---- Options and variables of stfs

const pages = ['stfs', 'stfs-info', 'stfs-gpu'].map((name) => readFileSync(join(source, `docs/man/${name}.1.in`), 'utf8')).join('');
const kOthers = ['NVIDIA_DRIVER_CAPABILITIES'];

function* about_variables(container, secret) {
  for (const { name, valueFrom } of container.env ?? []) {
    if (!kOthers.includes(name) && !new RegExp(`^\\.It Ev .*\\b${name}\\b|^\\.Ev ${name}\\b`, 'm').test(pages)) yield `${container.name}: no page names ${name}`;
    const key = valueFrom?.secretKeyRef;
    if (key && (key.name !== secret.metadata.name || !(key.key in secret.stringData))) yield `${container.name}: secret.yaml has no ${key.name}/${key.key}`;
    if (key && key.optional !== true) yield `${container.name}: ${key.key} is not optional`;
    if (/TOKEN|SECRET|KEY/.test(name) && !key) yield `${container.name}: ${name} is not from a secret`;
  }
}

// Returns the commands of stfs in a container as lists of words. The scripts must not contain quotes.
function commands_of(container) {
  const words = [...(container.command ?? []), ...(container.args ?? [])];
  if (words[0] === 'sh') {
    return words[2].split(/&&|;/).map((line) => line.trim().split(/\s+/).filter((word) => word !== 'exec' && !word.startsWith('2>')))
      .filter((line) => line[0].startsWith('stfs'));
  }
  const handed = words.indexOf('--');
  if (words[0].endsWith('/fuse-starter')) return [words.slice(handed + 1)];
  return words[0].split('/').pop().startsWith('stfs') ? [words] : [];
}

const kProgram = { stfs: 'fs/stfs', 'stfs-info': 'tools/stfs-info', 'stfs-gpu': 'tools/gpu/stfs-gpu' };

// Runs a command without a network. A correct command fails at its missing source with exit status 3; wrong usage fails
// earlier with 2.
function* about_command(container, words, work) {
  const [name, ...rest] = [words[0].split('/').pop(), ...words.slice(1)];
  const program = join(build, kProgram[name] ?? name);
  if (!existsSync(program)) return void (yield* kProgram[name] ? [] : [`${container.name}: no program ${name}`]);
  if (rest.includes('-u')) return;  // -u has no source
  const args = rest.map((word) => (word.startsWith('/models') ? join(work, word) : word));
  const is_handed = args.at(-1).startsWith('/dev/fd/');
  const done = spawnSync(program, args, {
    encoding: 'utf8', timeout: 60000, input: '',
    env: { PATH: process.env.PATH, HF_HUB_OFFLINE: '1', STFS_CACHE: join(work, 'cache'), HOME: work,
      AWS_REGION: 'eu-central-1', AWS_ACCESS_KEY_ID: 'AKID', AWS_SECRET_ACCESS_KEY: 'secret', AWS_EC2_METADATA_DISABLED: 'true' },
  });
  // 4: the test hands over no mount or cannot mount. 5: the machine has no GPU.
  const is_refused = is_handed || (name === 'stfs' && !existsSync('/dev/fuse'));
  const expected = is_refused ? [4] : name === 'stfs-gpu' ? [3, 5] : [3];
  if (!expected.includes(done.status)) yield `${container.name}: ${words.join(' ')}: exit status ${done.status}: ${done.stderr}`;
}

// ---- All manifests

async function faults_of(text, secret, work) {
  const wrong = [...unexplained(text)];
  let commands = 0;
  for (const document of YAML.parseAllDocuments(text)) {
    if (document.errors.length > 0) return [`YAML: ${document.errors[0].message}`];
    const object = document.toJS();
    wrong.push(...await against_schema(object), ...misspelt(object));
    const pod = object.kind === 'Pod' ? object.spec : object.spec?.template?.spec;
    if (!pod?.containers) continue;
    wrong.push(...about_pod(pod));
    for (const container of [...(pod.initContainers ?? []), ...pod.containers]) {
      wrong.push(...about_variables(container, secret));
      for (const words of container.command ? commands_of(container) : []) {
        ++commands;
        wrong.push(...about_command(container, words, work));
      }
    }
    if (commands === 0) wrong.push('no command of stfs');
  }
  return wrong;
}

// [file, text, replacement, text that the finding must contain]
const kPlanted = [
  ['csi.yaml', 'allowPrivilegeEscalation: false', 'allowPrivilegedEscalation: false', 'allowPrivilegedEscalation: unknown field'],
  ['csi.yaml', 'sizeLimit: 1Mi', 'sizelimit: 1Mi', 'sizelimit: unknown field'],
  ['csi.yaml', '      type: RuntimeDefault', '      type: RuntimeDefault\n      profile: x', 'profile: unknown field'],
  ['csi.yaml', 'runAsUser: 65534 ', 'runAsUser: "65534" ', 'runAsUser: type'],
  ['csi.yaml', 'command: [head, -c, "1", /models', 'command: [head, -c, 1, /models', 'command/2: type'],
  ['csi.yaml', 'memory: 1Gi', 'memory: 1 GB', 'quantity'],
  ['csi.yaml', 'apiVersion: v1', 'apiVersion: v3', 'the API has no Pod in v3'],
  ['gpu.yaml', 'apiVersion: batch/v1', 'apiVersion: jobs/v1', 'the API has no Job in jobs/v1'],
  ['gpu.yaml', 'kind: Job', 'kind: Jobs', 'the API has no Jobs in batch/v1'],
  ['csi.yaml', 'restartPolicy: Always', 'restartPolicy: always', 'restartPolicy: not always'],
  ['csi.yaml', 'containers:\n    - name: program', 'containers:\n    - title: program', 'required'],
  ['memory.yaml', 'readOnlyRootFilesystem: true', 'readOnlyRootFilesystem: false', 'the root is not read-only'],
  ['memory.yaml', 'drop: [ALL]', 'drop: [NET_RAW]', 'capabilities are not dropped'],
  ['memory.yaml', 'limits: {cpu: "1", memory: 512Mi}', 'limits: {cpu: "1"}', 'no limits of memory'],
  ['memory.yaml', '--connections', '--conections', 'exit status 2'],
  ['memory.yaml', '        - extract\n', '        - extrakt\n', 'exit status 2'],
  ['csi.yaml', 'cache_size=90G', 'cache_sizes=90G', 'exit status 2'],
  ['csi.yaml', 'supervise,', 'supervise,allow_other,', 'exit status 2'],
  ['csi.yaml', 'cache_size=90G', 'cache_size=900G', 'the cache may grow over sizeLimit'],
  ['gpu.yaml', 'value: /cache/stfs', 'value: /cache', 'STFS_CACHE is a volume itself'],
  ['gpu.yaml', 'sizeLimit: 100Gi', 'sizeLimit: 80Gi', 'the cache may grow over sizeLimit'],
  ['memory.yaml', 'name: STFS_CACHE', 'name: STFS_CACHES', 'no page names STFS_CACHES'],
  ['memory.yaml', 'key: HF_TOKEN', 'key: HF_TOKENS', 'secret.yaml has no stfs/HF_TOKENS'],
  ['memory.yaml', '              optional: true\n', '', 'HF_TOKEN is not optional'],
  ['sidecar.yaml', 'privileged: true                  # Kubernetes permits Bidirectional to no other', 'privileged: true', 'a permission without a reason'],
  ['sidecar.yaml', 'privileged: true ', 'privileged: false ', 'only a privileged container may have Bidirectional'],
  ['device-plugin.yaml', 'allowPrivilegeEscalation: true ', 'allowPrivilegeEscalation: false ', 'with a permission that needs it'],
  ['device-plugin.yaml', '- name: cache\n      emptyDir', '- name: caches\n      emptyDir', 'no volume cache'],
];

const directory = join(source, 'docs/examples/kubernetes');
const texts = new Map(readdirSync(directory).filter((name) => name.endsWith('.yaml'))
  .map((name) => [name, readFileSync(join(directory, name), 'utf8')]));
const secret = YAML.parse(texts.get('secret.yaml'));
const guide = readFileSync(join(source, 'docs/KUBERNETES.md'), 'utf8');
const work = mkdtempSync(join(tmpdir(), 'stfs-kubernetes-'));
mkdirSync(join(work, 'models/w'), { recursive: true });
let failures = 0;
const fail = (line) => { ++failures; console.log(`FAILED: ${line}`); };
try {
  for (const [name, text] of texts) {
    for (const wrong of await faults_of(text, secret, work)) fail(`${name}: ${wrong}`);
    if (!guide.includes(`(examples/kubernetes/${name})`)) fail(`${name}: KUBERNETES.md does not name it`);
    const grants_nothing = guide.includes(`(examples/kubernetes/${name}) | none |`);
    if (grants_nothing && text.split('\n').some((line) => kPermission.test(line.split(' #')[0]))) fail(`${name}: grants a permission, but KUBERNETES.md says none`);
  }
  for (const [name, from, to, expected] of kPlanted) {
    const text = texts.get(name);
    if (!text.includes(from)) { fail(`${name}: has no ${from}`); continue; }
    const wrong = await faults_of(text.replace(from, to), secret, work);
    if (!wrong.some((line) => line.includes(expected))) fail(`${name} with ${to}: not found: ${expected}, but ${wrong.join('; ')}`);
  }
} finally {
  rmSync(work, { recursive: true });
}
console.log(`${texts.size} manifests, ${kPlanted.length} planted faults, ${failures} failures`);
process.exit(failures === 0 ? 0 : 1);
