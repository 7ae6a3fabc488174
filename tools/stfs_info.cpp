// stfs-info: the same checkpoints without a mount.
#include "core/catalogue.h"
#include "core/checkpoint.h"
#include "core/content.h"
#include "core/error.h"
#include "core/text.h"

#include <CLI/CLI.hpp>
#include <fnmatch.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {
namespace {

// Where and how to print: only a terminal gets colours, and lines cut to its width.
struct Terminal {
  bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  bool has_colours = is_terminal && !is_set("NO_COLOR") && !is_dumb();
  std::size_t width = columns();

  static bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != '\0';
  }
  static bool is_dumb() {
    const char* term = std::getenv("TERM");
    return term == nullptr || std::string_view(term) == "dumb";
  }
  static std::size_t columns() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
  std::string bold(const std::string& text) const {
    return has_colours ? "\x1b[1m" + text + "\x1b[0m" : text;
  }
  std::string dim(const std::string& text) const {
    return has_colours ? "\x1b[2m" + text + "\x1b[0m" : text;
  }
};

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Columns that a UTF-8 text takes, near enough for a table: one a character.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(std::string text, std::size_t width) {
  const std::size_t columns = columns_of(text);
  if (columns < width) text.append(width - columns, ' ');
  return text;
}

// The first `width` columns of a text, the last of them an ellipsis when something is left out.
std::string shortened(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width) return text;
  std::size_t at = 0;
  for (std::size_t columns = 0; columns + 1 < width; ++columns) {
    at = utf8_floor(text, at + 1) > at ? utf8_floor(text, at + 1) : at + 1;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  return text.substr(0, at) + "…";
}

std::uint32_t find_tensor(const Checkpoint& checkpoint, const std::string& source,
                          const std::string& name) {
  if (const auto found = checkpoint.find(name)) return *found;
  throw Error(ErrorCode::kUsage, source, "tensor " + in_quotes(name) + ": not in the checkpoint");
}

Checkpoint load(const std::string& source, bool allow_missing) {
  return Checkpoint(std::span(&source, 1), {.allow_missing = allow_missing});
}

// --- list

enum class Sort { kName, kSize, kOffset };

struct ListArguments {
  std::string source;
  std::vector<std::string> globs;
  Sort sort = Sort::kName;
  bool json = false;
  bool allow_missing = false;
};

void print_table(const std::vector<Tensor>& tensors) {
  const Terminal terminal;
  std::vector<std::array<std::string, 4>> rows{{"NAME", "DTYPE", "SHAPE", "BYTES"}};
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    rows.push_back({printable(tensor.name), std::string(dtype_name(tensor.dtype)),
                    shape_json(tensor.shape), std::to_string(tensor.length)});
    bytes += tensor.length;
  }
  std::array<std::size_t, 4> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
    }
  }
  if (terminal.is_terminal) {
    constexpr std::size_t kLeastName = 8;
    constexpr std::size_t kMostShape = 32;
    widths[2] = std::min(widths[2], kMostShape);
    const std::size_t others = 6 + widths[1] + widths[2] + widths[3];
    const std::size_t room = terminal.width > others ? terminal.width - others : 0;
    widths[0] = std::min(widths[0], std::max(room, kLeastName));
  }
  for (const auto& row : rows) {
    const bool is_heading = &row == &rows.front();
    const std::string name = padded(shortened(row[0], widths[0]), widths[0]);
    const std::string shape = padded(shortened(row[2], widths[2]), widths[2]);
    const std::string size = std::string(widths[3] - row[3].size(), ' ') + row[3];
    const std::string dtype = padded(row[1], widths[1]);
    const std::string rest = "  " + dtype + "  " + shape + "  " + size;
    print((is_heading ? terminal.bold(name + rest) : name + terminal.dim(rest)) + "\n");
  }
  if (terminal.is_terminal) {
    print(terminal.bold(std::to_string(tensors.size()) + " tensors, " + human_bytes(bytes)) + "\n");
  }
}

int list(const ListArguments& arguments) {
  const Checkpoint checkpoint = load(arguments.source, arguments.allow_missing);
  std::vector<Tensor> tensors;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    const std::string name(tensor.name);
    const auto matches = [&](const std::string& glob) {
      // fnmatch reads to the first NUL: a name with one in it is matched by no pattern.
      return name.find('\0') == std::string::npos && ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
    };
    if (arguments.globs.empty() || std::ranges::any_of(arguments.globs, matches)) {
      tensors.push_back(tensor);
    }
  }
  if (arguments.sort == Sort::kName) {
    std::ranges::sort(tensors, {}, &Tensor::name);
  } else if (arguments.sort == Sort::kSize) {
    std::ranges::stable_sort(tensors, std::ranges::greater{}, &Tensor::length);
  }  // by offset: that is how they are numbered
  if (!arguments.json) {
    print_table(tensors);
    return 0;
  }
  print("[");
  for (const Tensor& tensor : tensors) {
    print(&tensor == tensors.data() ? "\n" : ",\n");
    print(tensor_json(tensor));
  }
  print("\n]\n");
  return 0;
}

// --- show

int show(const std::string& source, const std::string& name, bool json, bool allow_missing) {
  const Checkpoint checkpoint = load(source, allow_missing);
  const Tensor tensor = checkpoint.tensor(find_tensor(checkpoint, source, name));
  if (json) {
    print(tensor_json(tensor) + "\n");
    return 0;
  }
  const Terminal terminal;
  const auto line = [&](const char* key, const std::string& value) {
    print(terminal.dim(padded(key, 10)) + value + "\n");
  };
  line("name", printable(tensor.name));
  line("path", printable(tensor.path));
  line("dtype", std::string(dtype_name(tensor.dtype)));
  line("shape", shape_json(tensor.shape));
  line("elements", std::to_string(tensor.elements()));
  line("bytes", std::to_string(tensor.length));
  line("source", printable(tensor.source->file.path()));
  line("offset", std::to_string(tensor.offset));
  return 0;
}

// --- check

int check(const std::vector<std::string>& files) {
  bool any_breaks = false;
  bool any_unreadable = false;
  for (const std::string& file : files) {
    std::string verdict;
    try {
      const Checkpoint checkpoint = load(file, false);
      verdict = "ok\t" + std::to_string(checkpoint.tensor_count()) + " tensors";
    } catch (const Error& error) {
      (exit_status(error.code()) == 1 ? any_breaks : any_unreadable) = true;
      verdict = "error\t" + std::string(error_name(error.code())) + "\t" + error.message();
    }
    print(printable(file) + "\t" + verdict + "\n");
    std::fflush(stdout);
  }
  return any_breaks ? 1 : any_unreadable ? exit_status(ErrorCode::kUnreadable) : 0;
}

// --- cat

int cat(const std::string& source, const std::string& name, bool allow_missing) {
  const Checkpoint checkpoint = load(source, allow_missing);
  const Tensor tensor = checkpoint.tensor(find_tensor(checkpoint, source, name));
  Content content;
  content.extent(tensor.source->file, tensor.offset, tensor.length);

  constexpr std::size_t kChunk = 1 << 20;
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kChunk, content.size()));
  for (std::uint64_t offset = 0; offset < content.size();) {
    const auto length =
        static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, content.size() - offset));
    const std::span<std::byte> chunk = std::span(buffer).first(length);
    if (const int error = content.copy(offset, chunk)) {
      throw_errno(ErrorCode::kUnreadable, source, "tensor " + in_quotes(name), error);
    }
    for (std::span<const std::byte> rest = chunk; !rest.empty();) {
      const ssize_t n = ::write(STDOUT_FILENO, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno(ErrorCode::kUnreadable, "standard output", "", errno);
      rest = rest.subspan(static_cast<std::size_t>(n));
    }
    offset += length;
  }
  return 0;
}

// --- where

std::string attribute(const std::string& path, const char* name) {
  std::string value(65536, '\0');  // XATTR_SIZE_MAX
  const ssize_t length = ::getxattr(path.c_str(), name, value.data(), value.size());
  if (length < 0) {
    const bool absent = errno == ENODATA || errno == EOPNOTSUPP;
    throw Error(ErrorCode::kUnreadable, path,
                absent ? "not a tensor in a mount of stfs" : errno_text(errno));
  }
  value.resize(static_cast<std::size_t>(length));
  return value;
}

int where(const std::vector<std::string>& paths, bool json) {
  const Terminal terminal;
  std::string objects;
  for (const std::string& path : paths) {
    const std::string source = attribute(path, "user.stfs.source");
    const std::string offset = attribute(path, "user.stfs.offset");
    const std::string length = attribute(path, "user.stfs.length");
    const std::string dtype = attribute(path, "user.stfs.dtype");
    const std::string shape = attribute(path, "user.stfs.shape");
    if (json) {
      print("{\"path\":" + json_string(path) + ",\"source\":" + json_string(source) +
            ",\"offset\":" + offset + ",\"length\":" + length + ",\"dtype\":" + json_string(dtype) +
            ",\"shape\":" + shape + "}\n");
      continue;
    }
    const auto line = [&](const char* key, const std::string& value) {
      print(terminal.dim(padded(key, 8)) + value + "\n");
    };
    if (paths.size() > 1) print(terminal.bold(printable(path) + ":") + "\n");
    line("source", printable(source));
    line("offset", offset);
    line("length", length);
    line("dtype", dtype);
    line("shape", shape);
  }
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Look into a safetensors checkpoint without mounting it.", "stfs-info");
  app.set_version_flag("-V,--version", "stfs-info " STFS_VERSION);
  app.require_subcommand(1);
  bool json = false;
  bool allow_missing = false;
  std::string source;
  std::string tensor;
  std::vector<std::string> paths;
  ListArguments list_arguments;
  const auto add_source = [&](CLI::App* verb) {
    verb->add_option("SOURCE", source, "a .safetensors file, an index file, or a directory")
        ->required();
    verb->add_flag("--allow-missing", allow_missing, "go on without missing shards and tensors");
  };
  const auto add_json = [&](CLI::App* verb) { verb->add_flag("--json", json, "print JSON"); };

  CLI::App* list_verb = app.add_subcommand("list", "print the tensors");
  add_source(list_verb);
  add_json(list_verb);
  list_verb->add_option("GLOB", list_arguments.globs, "only the tensors whose names match one");
  list_verb->add_option("--sort", list_arguments.sort, "name, size (the largest first) or offset")
      ->option_text("name|size|offset")
      ->transform(CLI::Transformer(std::map<std::string, Sort>{
          {"name", Sort::kName}, {"size", Sort::kSize}, {"offset", Sort::kOffset}}));

  CLI::App* show_verb = app.add_subcommand("show", "print what is known of one tensor");
  add_source(show_verb);
  add_json(show_verb);
  show_verb->add_option("TENSOR", tensor, "its name")->required();

  CLI::App* check_verb = app.add_subcommand("check", "check files against the format");
  check_verb->add_option("FILE", paths, "files, index files or directories")->required();

  CLI::App* cat_verb = app.add_subcommand("cat", "write a tensor's bytes to standard output");
  add_source(cat_verb);
  cat_verb->add_option("TENSOR", tensor, "its name")->required();

  CLI::App* where_verb = app.add_subcommand("where", "print where the bytes of a mounted file are");
  add_json(where_verb);
  where_verb->add_option("PATH", paths, "files in a mount of stfs")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    throw Error(ErrorCode::kUsage, "", printable(text) + " (try stfs-info --help)");
  }

  if (list_verb->parsed()) {
    list_arguments.source = source;
    list_arguments.json = json;
    list_arguments.allow_missing = allow_missing;
    return list(list_arguments);
  }
  if (show_verb->parsed()) return show(source, tensor, json, allow_missing);
  if (check_verb->parsed()) return check(paths);
  if (cat_verb->parsed()) return cat(source, tensor, allow_missing);
  return where(paths, json);
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  try {
    const int status = stfs::run(argc, argv);
    if (std::fflush(stdout) != 0) {
      std::fprintf(stderr, "stfs-info: standard output: %s\n", stfs::errno_text(errno).c_str());
      return stfs::exit_status(stfs::ErrorCode::kUnreadable);
    }
    return status;
  } catch (const stfs::Error& error) {
    std::fprintf(stderr, "stfs-info: %s\n", error.what());
    return stfs::exit_status(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "stfs-info: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stfs-info: %s\n", stfs::printable(error.what()).c_str());
  }
  return stfs::exit_status(stfs::ErrorCode::kUnreadable);
}
