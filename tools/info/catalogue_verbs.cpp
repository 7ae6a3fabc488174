// The verbs list, show, check and where.
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/mount_source.h"
#include "core/command/terminal.h"
#include "core/layer/quantised/quantized_layout.h"
#include "core/remote/http/url.h"
#include "core/source/source.h"
#include "core/stored/directory.h"
#include "core/values/digest.h"
#include "tools/info/json.h"
#include "tools/info/output.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Returns the stored bytes of a tensor, or of all inputs of a computed tensor.
std::uint64_t stored_bytes(const Tensor& tensor) {
  if (tensor.computed == nullptr) return tensor.length;
  std::uint64_t bytes = 0;
  for (const Tensor& input : tensor.computed->inputs()) bytes += input.length;
  return bytes;
}

// Prints a table to a terminal, and otherwise tab-separated fields. If tensors are computed, a
// column shows their stored bytes.
void print_tensors(const std::vector<Tensor>& tensors, bool with_heading) {
  const bool any_computed =
      std::ranges::any_of(tensors, [](const Tensor& tensor) { return tensor.computed != nullptr; });
  const Terminal terminal;
  std::vector<TextTable::Column> columns{
      {.heading = "NAME", .least = 8, .is_name = true},
      {.heading = "DTYPE", .is_dim = true},
      {.heading = "SHAPE", .least = 8, .is_dim = true},
      {.heading = "BYTES", .is_right_aligned = true, .is_dim = true}};
  if (any_computed) {
    columns.push_back({.heading = "STORED", .is_right_aligned = true, .is_dim = true});
  }
  TextTable table(terminal, std::move(columns));
  std::vector<std::vector<std::string>> rows;
  std::uint64_t bytes = 0;
  std::uint64_t stored = 0;
  for (const Tensor& tensor : tensors) {
    rows.push_back({printable(tensor.name), std::string(dtype_name(tensor.dtype)),
                    shape_json(tensor.shape), std::to_string(tensor.length)});
    if (any_computed) rows.back().push_back(std::to_string(stored_bytes(tensor)));
    if (terminal.is_terminal) table.measure(rows.back());
    bytes += tensor.length;
    stored += any_computed ? stored_bytes(tensor) : 0;
  }
  if (!terminal.is_terminal) {
    if (with_heading)
      print(any_computed ? "name\tdtype\tshape\tbytes\tstored\n" : "name\tdtype\tshape\tbytes\n");
    for (const auto& row : rows) {
      std::string line = row.front();  // may be ""
      for (const std::string& field : std::span(row).subspan(1)) line += "\t" + field;
      print(line + "\n");
    }
    return;
  }
  if (with_heading) print(table.heading());
  for (const auto& row : rows) print(table.line(row));
  const char* noun = tensors.size() == 1 ? " tensor, " : " tensors, ";
  print(terminal.bold(std::to_string(tensors.size()) + noun + human_bytes(bytes) +
                      (any_computed ? ", stored in " + human_bytes(stored) : "")) +
        "\n");
}

void print_properties(const Terminal& terminal, const Tensor& tensor) {
  const auto line = [&](const char* key, const std::string& value) {
    print(terminal.dim(padded(key, 10)) + value + "\n");
  };
  line("name", printable(tensor.name));
  line("path", printable(tensor.path));
  line("dtype", std::string(dtype_name(tensor.dtype)));
  line("shape", shape_json(tensor.shape));
  line("elements", std::to_string(tensor.elements()));
  line("bytes", std::to_string(tensor.length));
  if (tensor.computed != nullptr) {
    line(tensor.computed->is_dequantized() ? "quantised" : "computed",
         std::string(tensor.computed->scheme()));
    for (const Tensor& input : tensor.computed->inputs()) {
      line("from", printable(input.name) + " " + std::string(dtype_name(input.dtype)) + " " +
                       shape_json(input.shape));
      line("source", printable(input.locator->source->path()));
      line("offset", std::to_string(input.locator->offset));
    }
  }
  if (!tensor.locator) return;
  line("source", printable(tensor.locator->source->path()));
  line("offset", std::to_string(tensor.locator->offset));
}

// Compares a local copy of a remote object with the digest that its server has published. Does
// nothing for a source whose bytes would have to be fetched.
void check_copy(const Source& source) {
  if (source.local_file() == nullptr || source.sha256().empty()) return;
  ProgressBar bar(source.size());
  const std::atomic<bool> stop = false;
  std::string why;
  const int error = check_published(source, stop, why, [&](auto bytes) { bar.add(bytes); });
  if (!why.empty()) throw Error(ErrorCode::kUnreadable, source.path(), why);
  if (error != 0) throw_read_failure(source, source.path(), "", error);
}

// Prints a line or a JSON object for each checkpoint, and records the worst result.
class Verdicts {
 public:
  explicit Verdicts(bool json) : json_(json) {}

  void check(const std::string& path, const LoadOptions& options) {
    try {
      const Checkpoint checkpoint(std::span(&path, 1), options);
      for (const Part& part : checkpoint.parts()) check_copy(*part.source);
      const std::uint32_t count = checkpoint.tensor_count();
      add(path, "ok\t" + std::to_string(count) + (count == 1 ? " tensor" : " tensors"),
          {{"ok", true}, {"tensors", count}});
    } catch (const Error& error) {
      if (error.place() == kStandardOutput && error.code() == ErrorCode::kUsage) throw;
      add_error(path, error);
    } catch (const std::bad_alloc&) {
      add_error(path, Error(ErrorCode::kUnreadable, path, "out of memory"));
    }
  }
  void add_error(const std::string& source, const Error& error) {
    const std::string path = public_name(source);
    (exit_status(error.code()) == 1 ? any_breaks_ : any_unreadable_) = true;
    // The error may be about a file that `path` names: a shard, or the checkpoint in a directory.
    std::string message = error.message();
    const std::string_view what = error.what();
    const std::string_view place = what.substr(0, what.find(": " + message));
    if (place != printable(path) && place.size() < what.size()) {
      message.insert(0, std::string(place) + ": ");
    }
    const std::string name(error_name(error.code()));
    add(path, "error\t" + name + "\t" + message,
        {{"ok", false}, {"error", name}, {"message", message}});
  }
  int end() {
    for (const std::string& text : held_) emit(text);
    if (json_) objects_.end();
    return any_breaks_ ? 1 : any_unreadable_ ? exit_status(ErrorCode::kUnreadable) : 0;
  }

 private:
  void add(const std::string& source, const std::string& columns, const Json& members) {
    const std::string path = public_name(source);
    Json object{{"path", path}};
    object.update(members);
    const std::string text = json_ ? json_line(object) : printable(path) + "\t" + columns + "\n";
    if (holds_) {
      held_.push_back(text);
    } else {
      emit(text);
    }
  }
  void emit(const std::string& text) {
    if (json_) {
      objects_.add(text);
    } else {
      print(text);
    }
    std::fflush(stdout);
  }

  bool json_;
  // If standard output is a file, it may be a source of a later checkpoint. So lines are held back,
  // and nothing is written to it, until all checkpoints were opened.
  const bool holds_ = prints_to_file();
  std::vector<std::string> held_;
  JsonArray objects_;
  bool any_breaks_ = false;
  bool any_unreadable_ = false;
};

// Returns the checkpoints that a source means: the source itself, or all checkpoints in a directory
// that contains several.
std::vector<std::string> checkpoints_at(const std::string& source, Sources& sources) {
  const std::string path = sources.pinned(source);
  auto names = checkpoints_in(path, sources);
  if (!names || names->size() <= 1) return {source};
  for (std::string& name : *names) name = child_name(path, name);
  return *std::move(names);
}

// The place of a mounted file's bytes, from the file's attributes. Offset, length and shape are
// JSON.
struct Place {
  std::string source = {}, offset = {}, length = {}, dtype = {}, shape = {};
  std::string name = {};           // the name of the tensor, if it is an input
  std::vector<Place> inputs = {};  // the inputs of a computed tensor, which has no place itself

  Json json() const {
    Json from = Json::array();
    for (const Place& input : inputs) {
      from.push_back({{"name", input.name}});
      from.back().update(input.json());
    }
    Json object =
        inputs.empty()
            ? Json{{"source", source}, {"offset", parsed(offset)}, {"length", parsed(length)}}
            : Json{{"source", nullptr}, {"offset", nullptr}, {"from", from}};
    object["dtype"] = dtype;
    object["shape"] = parsed(shape);
    return object;
  }

 private:
  // Parses a number or a flat array of numbers. Any user may have set the attributes of a file, so
  // any other text becomes a JSON string.
  static Json parsed(const std::string& text) {
    const bool is_flat = text.find_first_not_of("0123456789,[]") == std::string::npos &&
                         text.find('[', 1) == std::string::npos;
    Json value = is_flat ? Json::parse(text, nullptr, false) : Json();
    return is_flat && !value.is_discarded() ? value : Json(text);
  }
};

// Returns the places of the inputs of a computed tensor. Returns an empty list for other tensors.
std::vector<Place> places_of_inputs(const std::string& path) {
  const Arguments arguments;
  VerbSources sources(arguments);
  const Checkpoint checkpoint(std::span(&path, 1), {.sources = &sources});
  std::vector<Place> places;
  if (checkpoint.tensor_count() != 1 || checkpoint.tensor(0).computed == nullptr) return places;
  for (const Tensor& input : checkpoint.tensor(0).computed->inputs()) {
    places.push_back({.source = input.locator->source->path(),
                      .offset = std::to_string(input.locator->offset),
                      .length = std::to_string(input.locator->length),
                      .dtype = std::string(dtype_name(input.dtype)),
                      .shape = shape_json(input.shape),
                      .name = std::string(input.name)});
  }
  return places;
}

Place place_of(const std::string& path) {
  const auto attribute = [&](const char* name) {
    if (auto value = extended_attribute(path, name)) return *std::move(value);
    throw Error(ErrorCode::kUnreadable, path,
                "not the file of a tensor in a mount of stfs; without a mount, \"stfs-info show "
                "SOURCE TENSOR\" prints the place");
  };
  if (extended_attribute(path, "user.stfs.from")) {
    return {.dtype = attribute("user.stfs.dtype"),
            .shape = attribute("user.stfs.shape"),
            .inputs = places_of_inputs(path)};
  }
  Place place{.source = attribute("user.stfs.source"),
              .offset = attribute("user.stfs.offset"),
              .length = attribute("user.stfs.length"),
              .dtype = attribute("user.stfs.dtype"),
              .shape = attribute("user.stfs.shape")};
  if (!shows_tensor_bytes(path)) {
    throw Error(ErrorCode::kUnreadable, path,
                "shows the tensor in another form, which the source does not hold; name the file "
                "of tensor " +
                    in_quotes(attribute("user.stfs.name")) + " outside of .stfs/");
  }
  return place;
}

std::string place_json(const std::string& path, const Place& place) {
  Json object{{"path", path}};
  object.update(place.json());
  return json_line(object);
}

}  // namespace

int list(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  std::vector<std::uint32_t> numbers =
      select_tensors(checkpoint, arguments.source, arguments.globs);
  if (arguments.sort == Arguments::Sort::kName) sort_naturally(checkpoint, numbers);
  std::vector<Tensor> tensors;
  tensors.reserve(numbers.size());
  for (const std::uint32_t number : numbers) tensors.push_back(checkpoint.tensor(number));
  if (arguments.sort == Arguments::Sort::kSize) {
    std::ranges::stable_sort(tensors, std::ranges::greater{}, &Tensor::length);
  }  // kOffset: select_tensors() returns them in this order
  if (arguments.top != 0 && tensors.size() > arguments.top) tensors.resize(arguments.top);
  note_stored_codes(checkpoint, arguments, sources);
  if (!arguments.json) {
    print_tensors(tensors, !arguments.no_header);
    return 0;
  }
  JsonArray objects;
  for (const Tensor& tensor : tensors) objects.add(tensor_json(tensor));
  objects.end();
  return 0;
}

int show(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const std::vector<std::uint32_t> numbers =
      select_tensors(checkpoint, arguments.source, arguments.globs);
  if (arguments.json && arguments.globs.size() == 1 && checkpoint.find(arguments.globs.front())) {
    print(tensor_json(checkpoint.tensor(numbers.front())) + "\n");
    return 0;
  }
  const Terminal terminal;
  JsonArray objects;
  for (const std::uint32_t number : numbers) {
    const Tensor tensor = checkpoint.tensor(number);
    if (arguments.json) {
      objects.add(tensor_json(tensor));
      continue;
    }
    if (number != numbers.front()) print("\n");
    print_properties(terminal, tensor);
  }
  if (arguments.json) objects.end();
  return 0;
}

int check(const Arguments& arguments) {
  VerbSources sources(arguments);
  Verdicts verdicts(arguments.json);
  for (const std::string& path : arguments.paths) {
    std::vector<std::string> checkpoints;
    try {
      checkpoints = checkpoints_at(path, sources);
    } catch (const Error& error) {
      verdicts.add_error(path, error);
    }
    for (const std::string& checkpoint : checkpoints) {
      verdicts.check(checkpoint, {.layers = arguments.layers,
                                  .warn = print_warning,
                                  .warns_of_refused_alone = arguments.layers.empty(),
                                  .sources = &sources});
    }
  }
  return verdicts.end();
}

int where(const Arguments& arguments) {
  std::vector<Place> places;
  for (const std::string& path : arguments.paths) places.push_back(place_of(path));
  if (arguments.json && places.size() == 1) {
    print(place_json(arguments.paths.front(), places.front()) + "\n");
    return 0;
  }
  const Terminal terminal;
  JsonArray objects;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    if (arguments.json) {
      objects.add(place_json(arguments.paths[i], places[i]));
      continue;
    }
    const auto line = [&](const char* key, const std::string& value) {
      print(terminal.dim(padded(key, 8)) + value + "\n");
    };
    if (places.size() > 1) print(terminal.bold(printable(arguments.paths[i]) + ":") + "\n");
    const auto lines = [&](const Place& at) {
      line("source", printable(at.source));
      line("offset", at.offset);
      line("length", at.length);
      line("dtype", at.dtype);
      line("shape", at.shape);
    };
    if (place.inputs.empty()) lines(place);
    for (const Place& input : place.inputs) {
      line("from", printable(input.name));
      lines(input);
    }
  }
  if (arguments.json) objects.end();
  return 0;
}

}  // namespace stfs
