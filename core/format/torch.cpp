#include "core/format/torch.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/described.h"
#include "core/format/inflate.h"
#include "core/format/torch_pickle.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::uint64_t kMostPickle = 256 << 20;  // bytes: two million tensors
constexpr std::uint64_t kFewUnpacked = 4 << 20, kMostRatio = 64;  // of a compressed pickle
constexpr std::uint64_t kMostTensorBytes = std::uint64_t{1} << 60;  // of all tensors, expanded ones too
constexpr std::uint64_t kBeforeStorage = 64;  // bytes before a storage
constexpr std::string_view kPickleName = "/data.pkl";

[[noreturn]] void refuse_torch(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kArchive, place, rule);
}

// What stands before the first slash of the pickle's name; nullopt without a pickle.
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
    const Pickle read_pickle(content_of(pickle, kMostPickle), place_);
    prefetch_members(source_, zip_.members, kBeforeStorage);
    {
      Refusals refusals(place_, header_);
      walk_tensors(read_pickle, place_, [&](std::string_view name, const TorchTensor& tensor) {
        add(name, tensor, refusals);
      });
    }
    header_.metadata.add("format", "pt");  // loaders ask a safetensors file for it
    finish_header(header_, place_);
    return std::move(header_);
  }

 private:
  const ZipMember* member(const std::string& name) const {
    return zip_.find(std::string(root_) + "/" + name);
  }

  // Refuses what no walk through the pickle could show.
  void refuse_others() const {
    if (member("constants.pkl") != nullptr) {
      refuse_torch(place_,
             "the file is TorchScript, which is a program: load it with torch.jit.load, and save its"
             " state_dict() with torch.save");
    }
    const ZipMember* const order = member("byteorder");
    if (order != nullptr && content_of(*order, 16) == "big") {
      refuse_torch(place_,
             "the tensors are big-endian: load the file with torch.load, and save it again on a"
             " little-endian machine");
    }
  }

  std::string content_of(const ZipMember& member, std::uint64_t most) const {
    const std::string subject = "member " + in_quotes(member.name);
    if (const std::string why = member.refusal(); !why.empty()) {
      refuse_torch(place_, subject + ": " + why);
    }
    // A compressed one may be a thousand times as long as its file; pickles of tensors are not.
    if (member.method != ZipMember::kStored && member.unpacked > kFewUnpacked &&
        member.unpacked / kMostRatio > member.packed) {
      refuse_torch(place_, subject + ": is out of proportion to its compressed bytes");
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
                         std::to_string(storage->unpacked) + " bytes, and should have " +
                         std::to_string(tensor.storage_bytes));
    }
    if (tensor.bytes > kMostTensorBytes - bytes_) {
      return refusals.add(name, "it has more elements than can be shown");
    }
    bytes_ += tensor.bytes;
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

  // A storage that a tensor needs.
  struct Place {
    ByteRange data;
    std::uint32_t member;  // in Header::members
  };
  // Several tensors may share a storage: its local header is read once.
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
  std::vector<std::optional<Place>> places_;  // by member of the archive
  std::uint64_t bytes_ = 0;                   // of all tensors
  Header header_;
};

}  // namespace

bool is_torch(const ZipDirectory& zip) { return root_of(zip).has_value(); }

Header read_torch(const ZipDirectory& zip, const Source& source, const std::string& place,
                  const ReadBytes& read) {
  return TorchReader(zip, source, place, read).read();
}

}  // namespace stfs
