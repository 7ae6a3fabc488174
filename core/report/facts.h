// Properties of a model according to its configuration: config.json beside safetensors files, or
// the keys of a GGUF file.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/report/report.h"

#include <atomic>

namespace stfs {

// Sets Report::facts and ties_embeddings. Leaves them unchanged if the configuration does not
// contain them. Reads config.json if the checkpoint was loaded with its model files
// (LoadOptions::with_model_files); ignores it if it cannot be read. Soon after `stop` was set, it
// does not wait for the network any more.
void add_facts(const Checkpoint& checkpoint, const std::atomic<bool>& stop, Report& report);

}  // namespace stfs
