#include "core/stored/missing_checkpoint.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/format/guess.h"
#include "core/format/zip.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <vector>

namespace stfs {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Returns true only if the path certainly does not exist. If stat fails otherwise, as on a mount
// that has ended, returns false, because the loading that follows reports the cause.
bool is_absent(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

bool is_weights_of_another_format(std::string_view name) {
  constexpr std::array<std::string_view, 6> kSuffixes{".pkl", ".h5",      ".onnx",
                                                      ".npy", ".msgpack", ".tflite"};
  return std::ranges::any_of(kSuffixes, [&](std::string_view end) { return name.ends_with(end); });
}

// Returns true for a name of a model on the Hub, "org/name", if there is no local directory "org".
bool is_model_name(std::string_view source) {
  const std::size_t slash = source.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == source.size()) return false;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  const std::string_view name = source.substr(slash + 1);
  return source.front() != '.' && std::ranges::all_of(source.substr(0, slash), is_plain) &&
         std::ranges::all_of(name, is_plain) && !is_source_name(name) && !name.ends_with(".json") &&
         is_absent(source.substr(0, slash));
}

std::vector<std::string> sorted_names(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Returns "\"a\"" or "\"a\" and 2 more".
std::string listed(const std::vector<std::string>& names) {
  const std::string more =
      names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "";
  return in_quotes(names.front()) + more;
}

// Returns true if the directory has a checkpoint with a usual name. Does not list the directory,
// because the user did not name it and listing may take long.
bool holds_checkpoint(const fs::path& directory) {
  constexpr std::array kUsual{"model.safetensors", "model.safetensors.index.json",
                              "diffusion_pytorch_model.safetensors",
                              "diffusion_pytorch_model.safetensors.index.json", ".metadata"};
  return std::ranges::any_of(kUsual, [&](const char* name) { return is_there(directory / name); });
}

// Recognises directories of other programs by the names in them. Returns what the directory is and
// what to do, or "" if it is not recognised.
std::string store_of(const std::vector<std::string>& names) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto first_like = [&](const char* pattern) {
    return std::ranges::find_if(
        names, [&](const std::string& name) { return ::fnmatch(pattern, name.c_str(), 0) == 0; });
  };
  if (has(".metadata")) {
    return "it is a distributed checkpoint of PyTorch: " + std::string(kConvertDistributed);
  }
  if (const auto shard = first_like("*.distcp"); shard != names.end()) {
    return "it has " + in_quotes(*shard) +
           " and no .metadata: an unfinished distributed checkpoint of PyTorch";
  }
  if ((has("blobs") && has("manifests")) || first_like("sha256-????????????????*") != names.end()) {
    return "it is a store of Ollama: name the file in the line FROM that \"ollama show --modelfile "
           "MODEL\" prints";
  }
  if (has("data.pkl") && (has("version") || has("data"))) {
    return "it is a PyTorch file that was unpacked: in the directory above, pack it again with zip "
           "-0 -r FILE.pt and this name";
  }
  return "";
}

// Returns what a directory without a checkpoint contains instead and what to do about it, or "" if
// nothing suggests a next step.
std::string found_in(const std::string& directory, const std::vector<std::string>& names) {
  if (names.empty()) return "it is empty";
  const bool is_local = !is_url(directory);
  const auto those = [&](const auto& predicate) {
    std::vector<std::string> found;
    std::ranges::copy_if(names, std::back_inserter(found), predicate);
    return found;
  };
  if (is_local && is_there(fs::path(directory) / "blobs")) {
    const fs::path snapshots = fs::path(directory) / "snapshots";
    if (const auto revisions = sorted_names(snapshots); !revisions.empty()) {
      return "it is a model in the cache of a Hub: name " +
             in_quotes((snapshots / revisions.front()).string());
    }
  }
  if (std::string store = store_of(names); !store.empty()) return store;
  if (const auto files = those(is_unfinished_name); !files.empty()) {
    return "it has " + listed(files) + ", an unfinished download: finish it";
  }
  if (const auto files = those(is_piece_name); !files.empty()) {
    return "it has " + listed(files) +
           ", pieces of a file: join them in their order with cat, and name the result";
  }
  if (const auto files = those(is_source_name); !files.empty()) {
    return "it has " + listed(files) + ": name the file that you mean";
  }
  if (const auto files = those(is_weights_of_another_format); !files.empty()) {
    return "it has " + listed(files) +
           "; stfs reads only safetensors, GGUF, PyTorch and NumPy files";
  }
  if (!is_local) return "";
  // A directory with more names is not searched, because each name costs a few system calls. The
  // directory of a pipeline has only a few parts.
  constexpr std::size_t kFew = 1000;
  const auto is_model = [&](const std::string& name) {
    return names.size() <= kFew && holds_checkpoint(fs::path(directory) / name);
  };
  if (const auto directories = those(is_model); !directories.empty()) {
    return "it has a checkpoint in " + listed(directories) + ": name that directory";
  }
  // The Hub's own client downloads into this directory, and moves files that are complete.
  const fs::path downloads = fs::path(directory) / ".cache/huggingface/download";
  if (std::ranges::any_of(sorted_names(downloads), is_unfinished_name)) {
    return "a download into it is unfinished: finish it";
  }
  return "";
}

}  // namespace

void refuse_model_name(const std::string& source) {
  if (!is_model_name(source) || !is_absent(source)) return;
  throw Error(ErrorCode::kUnreadable, source,
              errno_text(ENOENT) + ": to mount a model of the Hub, name hf://" + source);
}

std::string no_checkpoint_in(const std::string& directory, std::vector<std::string> names) {
  const std::string rule = "no .safetensors file, no .gguf file and no index in this directory";
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::ranges::sort(names);
  const std::string found = found_in(directory, names);
  return found.empty() ? rule : rule + ": " + found;
}

std::string absence_of(const std::string& file) {
  const std::string link = dangling_link(file);
  std::error_code error;
  const fs::path target =
      link.empty() ? fs::path(file) : fs::path(file).parent_path() / fs::read_symlink(file, error);
  const std::string text = link.empty() ? "missing" : link;
  const std::string sidecar = sidecar_of(target);
  return sidecar.empty() ? text : text + " (" + in_quotes(sidecar) + " is an unfinished download)";
}

std::string sidecar_of(const fs::path& file) {
  for (const std::string_view suffix : kUnfinishedSuffixes) {
    fs::path unfinished = file;
    unfinished += suffix;
    if (is_there(unfinished)) return unfinished.filename().string();
  }
  std::error_code error;
  const fs::path target = fs::is_symlink(file, error) ? fs::canonical(file, error) : fs::path();
  return target.empty() ? "" : sidecar_of(target);
}

bool is_shard_name(std::string_view name) {
  return ::fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors",
                   std::string(name).c_str(), 0) == 0;
}

}  // namespace stfs
