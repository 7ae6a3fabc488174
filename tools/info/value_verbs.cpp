// stats, hash, diff
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/recipe/digest.h"
#include "core/recipe/stats.h"
#include "tools/command/terminal.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <algorithm>
#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Prints lines one by one, or with --json as the elements of an array. Skips empty lines.
class Lines {
 public:
  Lines(bool json, ProgressBar& bar) : json_(json), bar_(bar) {
    if (json_) bar_.print("[\n");
  }
  void add(std::string line) {
    if (line.empty()) return;
    if (!json_) return bar_.print(line + "\n");
    // Keep the line until the next one comes: only then a comma follows it.
    if (last_) bar_.print(*last_ + ",\n");
    last_ = std::move(line);
  }
  void end() {
    if (json_) bar_.print(last_ ? *last_ + "\n]\n" : "]\n");
  }

 private:
  bool json_;
  ProgressBar& bar_;
  std::optional<std::string> last_;
};

// Calls `make` for the numbers 0 to count-1 on `jobs` threads and adds the lines in the order of
// the numbers. When a call throws, sets `stop` for the others and throws the first exception.
void add_in_order(Lines& out, std::size_t count, unsigned jobs,
                  const std::function<std::string(std::size_t, const std::atomic<bool>&)>& make) {
  std::mutex mutex;
  std::condition_variable line_done;
  std::vector<std::optional<std::string>> lines(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> stop = false;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; !stop && (i = next++) < count;) {
      try {
        std::string line = make(i, stop);
        const std::lock_guard lock(mutex);
        lines[i] = std::move(line);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
      line_done.notify_one();
    }
  };
  if (jobs == 0) jobs = std::max(1U, std::thread::hardware_concurrency());
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 0; i < std::min<std::size_t>(jobs, count); ++i)
        threads.emplace_back(work);
    } catch (const std::exception&) {
      // No more threads: go on with those that started, or with this one.
      if (threads.empty()) work();
    }
    std::unique_lock lock(mutex);
    for (std::size_t i = 0; i < count && !failure; ++i) {
      line_done.wait(lock, [&] { return failure || lines[i]; });
      if (failure) break;
      std::string line = std::move(*lines[i]);
      lock.unlock();
      out.add(std::move(line));
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

[[noreturn]] void fail(const Tensor& tensor, int error) {
  throw_errno(ErrorCode::kUnreadable, tensor.locator ? tensor.locator->source->path() : "",
              "tensor " + in_quotes(tensor.name), error);
}

std::uint64_t bytes_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t number : tensors) bytes += checkpoint.tensor(number).length;
  return bytes;
}

// Prints `line_of` of each selected tensor.
int for_selected(const Arguments& arguments,
                 const std::function<std::string(const Tensor&, const std::atomic<bool>&,
                                                 const Progress&)>& line_of) {
  const Checkpoint checkpoint(
      std::span(&arguments.source, 1),
      {.allow_missing = arguments.allow_missing, .missing_hint = kMissingHint});
  const std::vector<std::uint32_t> tensors = checkpoint.match(arguments.globs);
  ProgressBar bar(bytes_of(checkpoint, tensors));
  Lines out(arguments.json, bar);
  add_in_order(out, tensors.size(), arguments.jobs,
               [&](std::size_t i, const std::atomic<bool>& stop) {
                 return line_of(checkpoint.tensor(tensors[i]), stop,
                                [&bar](std::uint64_t bytes) { bar.add(bytes); });
               });
  out.end();
  return 0;
}

// The first byte in which two tensors of equal size differ; nullopt when all bytes are equal.
std::optional<std::uint64_t> first_difference(const Tensor& a, const Tensor& b,
                                              const std::atomic<bool>& stop,
                                              const Progress& progress) {
  const auto are_same_bytes = [](const Extent& x, const Extent& y) {
    return x.source->version().token == y.source->version().token && x.offset == y.offset;
  };
  if (a.locator && b.locator && are_same_bytes(*a.locator, *b.locator)) {
    progress(a.length);
    return std::nullopt;
  }
  const Content content_a = a.content();
  const Content content_b = b.content();
  constexpr std::uint64_t kChunk = 256 << 10;
  std::vector<std::byte> chunk_a(std::min(kChunk, a.length));
  std::vector<std::byte> chunk_b(chunk_a.size());
  for (std::uint64_t offset = 0; offset < a.length && !stop;) {
    const auto length = static_cast<std::size_t>(std::min(kChunk, a.length - offset));
    const std::span in_a = std::span(chunk_a).first(length);
    const std::span in_b = std::span(chunk_b).first(length);
    if (const int error = content_a.copy(offset, in_a)) fail(a, error);
    if (const int error = content_b.copy(offset, in_b)) fail(b, error);
    if (std::memcmp(in_a.data(), in_b.data(), length) != 0) {
      const auto position = std::ranges::mismatch(in_a, in_b).in1 - in_a.begin();
      return offset + static_cast<std::uint64_t>(position);
    }
    progress(length);
    offset += length;
  }
  return std::nullopt;
}

// A difference as a line of tab-separated columns, or with --json as an object.
std::string difference(const Arguments& arguments, const char* kind, std::string_view name,
                       const std::string& in_a = "", const std::string& in_b = "") {
  if (!arguments.json) {
    std::string line = std::string(kind) + "\t" + printable(name);
    if (!in_a.empty()) line += "\t" + in_a;
    if (!in_b.empty()) line += "\t" + in_b;
    return line;
  }
  std::string object = "{\"change\":\"" + std::string(kind) + "\",\"name\":" + json_string(name);
  if (std::string_view(kind) == "bytes") {
    object += ",\"first_difference\":" + in_a;
  } else if (!in_a.empty()) {
    const bool is_shape = std::string_view(kind) == "shape";
    object += ",\"a\":" + (is_shape ? in_a : json_string(in_a));
    object += ",\"b\":" + (is_shape ? in_b : json_string(in_b));
  }
  return object + "}";
}

std::vector<std::uint32_t> by_name(const Checkpoint& checkpoint) {
  std::vector<std::uint32_t> numbers = checkpoint.match({});
  std::ranges::sort(numbers, {}, [&](std::uint32_t number) { return checkpoint.name(number); });
  return numbers;
}

}  // namespace

int stats(const Arguments& arguments) {
  if (!arguments.json) print("name\tcount\tmin\tmax\tmean\tstd\tzeros\tnan\tinf\n");
  return for_selected(
      arguments,
      [&](const Tensor& tensor, const std::atomic<bool>& stop,
          const Progress& progress) -> std::string {
        ValueStats values;
        if (const int error = value_stats(tensor.content(), tensor.dtype, stop, values, progress)) {
          fail(tensor, error);
        }
        if (arguments.json) {
          return "{\"name\":" + json_string(tensor.name) + "," + stats_json(values).substr(1);
        }
        std::string line = printable(tensor.name) + "\t" + std::to_string(values.count);
        for (const auto& value : {values.min, values.max, values.mean, values.std}) {
          char text[32] = "-";
          if (value) std::snprintf(text, sizeof text, "%.6g", *value);
          line += std::string("\t") + text;
        }
        for (const std::uint64_t count : {values.zeros, values.nan, values.inf}) {
          line += "\t" + std::to_string(count);
        }
        return line;
      });
}

int hash(const Arguments& arguments) {
  return for_selected(arguments, [&](const Tensor& tensor, const std::atomic<bool>& stop,
                                     const Progress& progress) {
    std::string hex;
    if (const int error = sha256(tensor.content(), stop, hex, progress)) fail(tensor, error);
    if (!arguments.json) {
      std::string line = sha256sum_line(hex, tensor.path);
      line.pop_back();  // the line end
      return line;
    }
    return "{\"name\":" + json_string(tensor.name) + ",\"path\":" + json_string(tensor.path) +
           ",\"sha256\":\"" + hex + "\"}";
  });
}

int diff(const Arguments& arguments) {
  const Checkpoint a(std::span(&arguments.source, 1),
                     {.allow_missing = arguments.allow_missing, .missing_hint = kMissingHint});
  const Checkpoint b(std::span(&arguments.other, 1),
                     {.allow_missing = arguments.allow_missing, .missing_hint = kMissingHint});
  const std::vector<std::uint32_t> in_a = by_name(a);
  const std::vector<std::uint32_t> in_b = by_name(b);

  // Merges the sorted names: a pair for each name in A or B.
  struct Pair {
    std::optional<Tensor> a, b;  // nullopt: not in this checkpoint
  };
  std::vector<Pair> pairs;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0, j = 0; i < in_a.size() || j < in_b.size();) {
    auto order = std::strong_ordering::less;
    if (i == in_a.size()) {
      order = std::strong_ordering::greater;
    } else if (j < in_b.size()) {
      order = a.name(in_a[i]) <=> b.name(in_b[j]);
    }
    Pair pair;
    if (std::is_lteq(order)) pair.a = a.tensor(in_a[i++]);
    if (std::is_gteq(order)) pair.b = b.tensor(in_b[j++]);
    if (pair.a && pair.b) bytes += pair.a->length;
    pairs.push_back(pair);
  }

  std::atomic<bool> differs = false;
  ProgressBar bar(bytes);
  Lines out(arguments.json, bar);
  add_in_order(
      out, pairs.size(), arguments.jobs, [&](std::size_t i, const std::atomic<bool>& stop) {
        const auto& [left, right] = pairs[i];
        std::string line;
        if (!right) {
          line = difference(arguments, "removed", left->name);
        } else if (!left) {
          line = difference(arguments, "added", right->name);
        } else if (left->dtype != right->dtype) {
          line = difference(arguments, "dtype", left->name, std::string(dtype_name(left->dtype)),
                            std::string(dtype_name(right->dtype)));
        } else if (!std::ranges::equal(left->shape, right->shape)) {
          line = difference(arguments, "shape", left->name, shape_json(left->shape),
                            shape_json(right->shape));
        } else if (const auto at = first_difference(*left, *right, stop,
                                                    [&](std::uint64_t n) { bar.add(n); })) {
          line = difference(arguments, "bytes", left->name, std::to_string(*at));
        }
        if (!line.empty()) differs = true;
        return line;
      });
  out.end();
  return differs ? 1 : 0;
}

}  // namespace stfs
