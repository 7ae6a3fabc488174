// What a model is by its configuration: config.json beside safetensors, or the keys of a GGUF file.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/checkpoint/checkpoint.h"
#include "core/report/report.h"

#include <atomic>

namespace stfs {

// Sets Report::facts and ties_embeddings; leaves them where nothing says them. config.json is read
// where the checkpoint has its model files (LoadOptions::with_model_files); one that cannot be read
// says nothing. Soon after `stop` was set, it waits for no network.
void add_facts(const Checkpoint& checkpoint, const std::atomic<bool>& stop, Report& report);

}  // namespace stfs
