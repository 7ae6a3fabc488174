// list, show, check, where
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "tools/command/terminal.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <new>
#include <span>
#include <system_error>

namespace stfs {
namespace {

void print_table(const std::vector<Tensor>& tensors) {
  const Terminal terminal;
  Table table(terminal, {{.heading = "NAME", .least = 8},
                         {.heading = "DTYPE", .is_dim = true},
                         {.heading = "SHAPE", .least = 8, .is_dim = true},
                         {.heading = "BYTES", .is_right_aligned = true, .is_dim = true}});
  std::vector<std::array<std::string, 4>> rows;
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    rows.push_back({printable(tensor.name), std::string(dtype_name(tensor.dtype)),
                    shape_json(tensor.shape), std::to_string(tensor.length)});
    table.measure(rows.back());
    bytes += tensor.length;
  }
  print(table.heading());
  for (const auto& row : rows) print(table.line(row));
  if (terminal.is_terminal) {
    const char* noun = tensors.size() == 1 ? " tensor, " : " tensors, ";
    print(terminal.bold(std::to_string(tensors.size()) + noun + human_bytes(bytes)) + "\n");
  }
}

std::string attribute(const std::string& path, const char* name) {
  if (auto value = extended_attribute(path, name)) return *std::move(value);
  throw Error(ErrorCode::kUnreadable, path, "not a tensor in a mount of stfs");
}

}  // namespace

int list(const Arguments& arguments) {
  const Checkpoint checkpoint(
      std::span(&arguments.source, 1),
      {.allow_missing = arguments.allow_missing, .missing_hint = kMissingHint});
  std::vector<Tensor> tensors;
  for (const std::uint32_t number : checkpoint.match(arguments.globs)) {
    tensors.push_back(checkpoint.tensor(number));
  }
  if (arguments.sort == Arguments::Sort::kName) {
    std::ranges::sort(tensors, {}, &Tensor::name);
  } else if (arguments.sort == Arguments::Sort::kSize) {
    std::ranges::stable_sort(tensors, std::ranges::greater{}, &Tensor::length);
  }  // kOffset: match() returns them in this order
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

int show(const Arguments& arguments) {
  const Checkpoint checkpoint(
      std::span(&arguments.source, 1),
      {.allow_missing = arguments.allow_missing, .missing_hint = kMissingHint});
  const Tensor tensor = find_tensor(checkpoint, arguments.source, arguments.tensor);
  if (arguments.json) {
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
  if (!tensor.locator) return 0;
  line("source", printable(tensor.locator->source->path()));
  line("offset", std::to_string(tensor.locator->offset));
  return 0;
}

int check(const Arguments& arguments) {
  bool any_breaks = false;
  bool any_unreadable = false;
  for (const std::string& file : arguments.paths) {
    std::string verdict;
    try {
      const Checkpoint checkpoint(std::span(&file, 1));
      verdict = "ok\t" + std::to_string(checkpoint.tensor_count()) + " tensors";
    } catch (const Error& error) {
      (exit_status(error.code()) == 1 ? any_breaks : any_unreadable) = true;
      verdict = "error\t" + std::string(error_name(error.code())) + "\t" + error.message();
    } catch (const std::bad_alloc&) {
      any_unreadable = true;
      verdict = "error\tUnreadable\tout of memory";
    }
    print(printable(file) + "\t" + verdict + "\n");
    std::fflush(stdout);
  }
  return any_breaks ? 1 : any_unreadable ? exit_status(ErrorCode::kUnreadable) : 0;
}

int where(const Arguments& arguments) {
  const Terminal terminal;
  for (const std::string& path : arguments.paths) {
    const std::string source = attribute(path, "user.stfs.source");
    const std::string offset = attribute(path, "user.stfs.offset");
    const std::string length = attribute(path, "user.stfs.length");
    const std::string dtype = attribute(path, "user.stfs.dtype");
    const std::string shape = attribute(path, "user.stfs.shape");
    // Of a view's file the attributes name the tensor, and not the bytes that it shows.
    std::error_code error;
    if (extended_attribute(path, "user.stfs.slice") || extended_attribute(path, "user.stfs.as") ||
        std::to_string(std::filesystem::file_size(path, error)) != length) {
      throw Error(ErrorCode::kUnreadable, path, "shows the tensor in another form");
    }
    if (arguments.json) {
      print("{\"path\":" + json_string(path) + ",\"source\":" + json_string(source) +
            ",\"offset\":" + offset + ",\"length\":" + length + ",\"dtype\":" + json_string(dtype) +
            ",\"shape\":" + shape + "}\n");
      continue;
    }
    const auto line = [&](const char* key, const std::string& value) {
      print(terminal.dim(padded(key, 8)) + value + "\n");
    };
    if (arguments.paths.size() > 1) print(terminal.bold(printable(path) + ":") + "\n");
    line("source", printable(source));
    line("offset", offset);
    line("length", length);
    line("dtype", dtype);
    line("shape", shape);
  }
  return 0;
}

}  // namespace stfs
