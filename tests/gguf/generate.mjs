// generate.mjs NODE_LLAMA_CPP MODEL...: prints the 16 likeliest tokens that llama.cpp appends to a text, as one line of JSON per model.
import {pathToFileURL} from "node:url";

const [library, ...models] = process.argv.slice(2);
const {getLlama} = await import(pathToFileURL(`${library}/dist/index.js`));
const llama = await getLlama({gpu: false, build: "never", progressLogs: false, logLevel: "error"});
for (const modelPath of models) {
  const model = await llama.loadModel({modelPath});
  const context = await model.createContext({contextSize: 64, threads: 1});
  const tokens = [];
  for await (const token of context.getSequence().evaluate(model.tokenize("Once upon a time"), {temperature: 0})) {
    tokens.push(token);
    if (tokens.length === 16) break;
  }
  console.log(JSON.stringify(tokens));
  await model.dispose();
}
