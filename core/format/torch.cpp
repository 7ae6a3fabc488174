#include "core/format/torch.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/archive_tensors.h"
#include "core/format/inflate.h"
#include "core/format/torch_pickle.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kMaxPickle = 256 << 20;  // bytes, enough for two million tensors
// A compressed pickle may always have kFewUnpacked bytes, and more if its compression ratio is less
// than kMaxRatio.
constexpr std::uint64_t kFewUnpacked = 256 << 10, kMaxRatio = 16;
constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 60;  // bytes of all tensors
// The bytes of all tensors that have more bytes than their storage, because strides of 0 repeat its
// elements. Without a limit, a program that reads the tensors of a small file could need years.
constexpr std::uint64_t kMaxRepeated = 16ULL << 30;
constexpr std::uint64_t kLeastStep =
    1 << 20;  // the least distance between kept places in a compressed storage (inflated.cpp)
// A read that goes back by at most this many bytes decompresses nothing again, because strided.cpp
// still has the bytes in memory.
constexpr std::uint64_t kInWindow = 128 << 10;
constexpr std::uint64_t kBeforeStorage = 64;  // usual bytes of padding before a storage
constexpr std::string_view kPickleName = "/data.pkl";

[[noreturn]] void refuse_torch(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kArchive, place, rule);
}

// Returns the part before the slash of the pickle's name, or nullopt if there is no pickle.
std::optional<std::string_view> root_of(const ZipDirectory& zip) {
  for (const ZipMember& member : zip.members) {
    if (!member.name.ends_with(kPickleName)) continue;
    const std::string_view root = member.name.substr(0, member.name.size() - kPickleName.size());
    if (root.find('/') == std::string_view::npos) return root;
  }
  return std::nullopt;
}

class TorchReader {
 public:
  TorchReader(const ZipDirectory& zip, const Source& source, const std::string& place,
              const ReadBytes& read)
      : zip_(zip), root_(*root_of(zip)), source_(source), place_(place), read_(read) {
    places_.resize(zip.members.size());
  }

  Header read() {
    refuse_others();
    const ZipMember& pickle = *member("data.pkl");
    const ByteRange data = data_of(pickle, source_, place_, read_);
    header_.raw = {data.offset, pickle.method == ZipMember::kStored ? data.length : 0};
    header_.beginning = 0;
    const Pickle read_pickle(content_of(pickle, kMaxPickle), place_);
    prefetch_members(source_, zip_.members, kBeforeStorage);
    {
      Refusals refusals(place_, header_);
      const ClassCounts left_out = walk_tensors(
          read_pickle, place_,
          [&](std::string_view name, const TorchTensor& tensor) { add(name, tensor, refusals); });
      warn_of(left_out);
    }
    header_.metadata.add("format", "pt");  // programs that load safetensors files expect it
    finish_header(header_, place_);
    return std::move(header_);
  }

 private:
  // Warns about objects that are not shown, if there are no tensors, if there are more such objects
  // than tensors, or if they include NumPy arrays.
  void warn_of(const ClassCounts& left_out) {
    struct Step {
      std::string_view end, advice;  // the end of the name of a class, and what to do
    };
    constexpr Step kSteps[] = {
        {".DTensor", "save what full_tensor() gives"},
        {".TensorReference", "the tensors are in separate files beside it"},
        {".ndarray", "save arrays with numpy.savez, or as tensors"},
    };
    std::uint64_t count = 0;
    bool has_arrays = false;
    std::vector<std::pair<std::uint64_t, std::string_view>> classes;
    for (const auto& [name, of_class] : left_out) {
      count += of_class;
      has_arrays = has_arrays || name.ends_with(".ndarray");
      classes.emplace_back(of_class, name);
    }
    const std::size_t shown = header_.tensors.size();
    if (shown != 0 && count < shown && !has_arrays) return;
    std::ranges::sort(classes, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    constexpr std::size_t kNamed = 4;
    std::string text, steps;
    for (const auto& [of_class, name] :
         std::span(classes).first(std::min(kNamed, classes.size()))) {
      text += (text.empty() ? "" : ", ") + std::to_string(of_class) + " " + std::string(name);
      const auto* const step = std::ranges::find_if(
          kSteps, [&each = name](const Step& row) { return each.ends_with(row.end); });
      if (step != std::end(kSteps) && steps.find(step->advice) == std::string::npos) {
        steps += ": " + std::string(step->advice);
      }
    }
    if (classes.size() > kNamed)
      text += ", and " + std::to_string(classes.size() - kNamed) + " more classes";
    const std::string rule = shown == 0 && count == 0 ? "it holds no tensors"
                             : shown == 0 ? "it holds no tensor that stfs can show, only "
                                          : "not shown are ";
    header_.warnings.push_back(printable(place_) + ": " + rule + text + steps);
  }

  const ZipMember* member(const std::string& name) const {
    return zip_.find(std::string(root_) + "/" + name);
  }

  // Refuses files if their tensors are not in the pickle or cannot be shown.
  void refuse_others() const {
    if (member("constants.pkl") != nullptr) {
      refuse_torch(
          place_,
          "the file is TorchScript, which is a program: load it with torch.jit.load, and save its"
          " state_dict() with torch.save");
    }
    const ZipMember* const order = member("byteorder");
    if (order != nullptr && content_of(*order, 16) == "big") {
      refuse_torch(
          place_,
          "the tensors are big-endian: load the file with torch.load, and save it again on a"
          " little-endian machine");
    }
  }

  std::string content_of(const ZipMember& member, std::uint64_t most) const {
    const std::string subject = "member " + in_quotes(member.name);
    if (const std::string why = member.refusal(); !why.empty()) {
      refuse_torch(place_, subject + ": " + why);
    }
    // A compressed member may have a thousand times the bytes of its file, but a pickle of tensors
    // never compresses this well.
    if (member.method != ZipMember::kStored && member.unpacked > kFewUnpacked &&
        member.unpacked / kMaxRatio > member.packed) {
      refuse_torch(place_,
                   subject + ": its uncompressed size is too large for its compressed size");
    }
    if (member.unpacked > most) {
      refuse_torch(place_, subject + ": is larger than " + human_bytes(most));
    }
    const ByteRange data = data_of(member, source_, place_, read_);
    std::string text(static_cast<std::size_t>(member.unpacked), '\0');
    const auto bytes = std::as_writable_bytes(std::span(text));
    int error = 0;
    if (member.method == ZipMember::kStored) {
      error = read_(data.offset, bytes);
    } else {
      error = Inflater(data, {member.unpacked, member.crc}, read_).take(bytes);
    }
    if (error == EBADMSG) refuse_torch(place_, subject + ": is damaged: download it again");
    if (error != 0) throw_read_failure(source_, place_, subject, error);
    return text;
  }

  void add(std::string_view name, const TorchTensor& tensor, Refusals& refusals) {
    if (!tensor.refusal.empty()) return refusals.add(name, tensor.refusal);
    if (!is_utf8(name)) return refusals.add(name, "its name is not UTF-8");
    const std::string subject = "tensor " + in_quotes(name) + ": ";
    const ZipMember* const storage = member("data/" + std::string(tensor.storage));
    if (storage == nullptr) {
      refuse_torch(place_, subject + "its storage " + in_quotes(tensor.storage) +
                               " is not in the file: truncated? download it again");
    }
    if (const std::string why = storage->refusal(); !why.empty()) {
      return refusals.add(name, "its storage " + why);
    }
    if (storage->unpacked < tensor.storage_bytes) {
      refuse_torch(place_, subject + "its storage " + in_quotes(tensor.storage) + " has " +
                               std::to_string(storage->unpacked) + " bytes, but should have " +
                               std::to_string(tensor.storage_bytes));
    }
    if (tensor.bytes > kMaxTensorBytes - bytes_) {
      return refusals.add(name, "it has more elements than stfs can show");
    }
    if (tensor.bytes > tensor.storage_bytes) {
      if (tensor.bytes > kMaxRepeated - repeated_) {
        return refusals.add(
            name, "it repeats a storage of " + human_bytes(tensor.storage_bytes) + " up to " +
                      human_bytes(tensor.bytes) + ", but all such tensors may have only " +
                      human_bytes(kMaxRepeated) + " together: save what clone() gives");
      }
      repeated_ += tensor.bytes;
    }
    bytes_ += tensor.bytes;
    if (storage->method == ZipMember::kDeflated) {
      const std::uint64_t again = inflated_again(tensor, storage->unpacked);
      if (again > kMaxInflatedAgain) {
        return refusals.add(
            name, "its strides go back and forth over a compressed storage: " + human_bytes(again) +
                      " would be decompressed for one byte: unpack the archive, and pack it"
                      " again with zip -0");
      }
    }
    const Place& place = place_of(*storage);
    Description from{.member = place.member,
                     .stored = place.data,
                     .begin = tensor.begin,
                     .strides = tensor.strides};
    if (storage->method == ZipMember::kDeflated) {
      from.deflated = {.length = storage->unpacked, .crc = storage->crc};
    }
    add_described(name, tensor.dtype, tensor.shape, tensor.bytes, std::move(from), header_);
  }

  // Returns the greatest number of bytes that a read of one tile of the tensor decompresses again,
  // in addition to the storage itself. A read takes the dimensions in the order of descending
  // strides. If the inner dimensions together reach beyond the next step of an outer dimension,
  // each such step goes back in the storage, and all bytes since the last kept place are
  // decompressed again.
  static std::uint64_t inflated_again(const TorchTensor& tensor, std::uint64_t length) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> dims;  // stride, count
    for (std::size_t i = 0; i < tensor.strides.size(); ++i) {
      if (tensor.shape[i] > 1 && tensor.strides[i] > 0)
        dims.emplace_back(tensor.strides[i], tensor.shape[i]);
    }
    const bool is_turned = !std::ranges::is_sorted(dims, std::greater<>(),
                                                   &std::pair<std::uint64_t, std::uint64_t>::first);
    std::ranges::sort(dims, std::greater<>());
    const auto product = [](std::uint64_t a, std::uint64_t b) {
      return __builtin_mul_overflow(a, b, &a) ? ~std::uint64_t{0} : a;
    };
    const std::uint64_t step = std::max(kLeastStep, length / 32);
    // Even a few rows of a transposed tensor are spread over the whole storage.
    std::uint64_t again = is_turned ? length : 0, times = 1;
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
      std::uint64_t reach = 0;  // bytes from the first to the last element of the inner dimensions
      for (std::size_t j = i + 1; j < dims.size(); ++j)
        reach += dims[j].first * (dims[j].second - 1);
      times = product(times, dims[i].second);
      if (reach > std::max(dims[i].first, kInWindow))
        again = std::max(again, product(times, reach + step));
    }
    return again;
  }

  // The data of a storage that a tensor needs.
  struct Place {
    ByteRange data;
    std::uint32_t member;  // index in Header::members
  };
  // Reads the local header of each storage only once, because several tensors may share a storage.
  const Place& place_of(const ZipMember& storage) {
    auto& known = places_[static_cast<std::size_t>(&storage - zip_.members.data())];
    if (!known) {
      known = {data_of(storage, source_, place_, read_),
               static_cast<std::uint32_t>(header_.members.size())};
      header_.members.emplace_back(storage.name);
    }
    return *known;
  }

  const ZipDirectory& zip_;
  std::string_view root_;
  const Source& source_;
  const std::string& place_;
  const ReadBytes& read_;
  std::vector<std::optional<Place>> places_;  // one per member of the archive
  std::uint64_t bytes_ = 0;                   // bytes of all tensors so far
  std::uint64_t repeated_ = 0;  // bytes of the tensors that have more bytes than their storage
  Header header_;
};

}  // namespace

bool is_torch(const ZipDirectory& zip) { return root_of(zip).has_value(); }

Header read_torch(const ZipDirectory& zip, const Source& source, const std::string& place,
                  const ReadBytes& read) {
  return TorchReader(zip, source, place, read).read();
}

}  // namespace stfs
