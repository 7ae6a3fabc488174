#include "core/layer/edit/npy_file.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/npy_header.h"
#include "core/format/npz.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace stfs {
namespace {

// The format of such a part. It is not in the table of formats, so no file is recognised as NumPy.
constexpr Format kNpyFormat{.name = "npy",
                            .recognises = nullptr,
                            .read = nullptr,
                            .header_length = nullptr,
                            .raw_suffix = ".npy"};

class Reader {
 public:
  Reader(const std::string& path, std::unique_ptr<const Source> source, Sources& sources)
      : place_(public_name(path)), source_(std::move(source)), sources_(sources) {}

  Part read(const std::string& path) {
    const auto length = npy_header_length(bytes(0, kNpyPrefix));
    if (!length) refuse("not a NumPy file");
    const NpyHeader array = parse_npy_header(bytes(0, *length));
    if (!array.refusal.empty()) refuse(array.refusal);
    if (array.bytes != source_->size() - array.length) refuse("its size does not fit its shape");
    std::string name = last_component(path);
    constexpr std::string_view kEnding = ".npy";
    if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
    Header header;
    header.raw = {0, array.length};
    header.members = {last_component(path)};
    add_array(array, name, {.member = 0, .stored = {0, source_->size()}}, header);
    header.by_name = {0};
    return {.source = std::move(source_),
            .format = &kNpyFormat,
            .header = std::move(header),
            .label = last_component(path),
            .directory = parent_name(path)};
  }

 private:
  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::kEdit, place_, rule);
  }

  std::string bytes(std::uint64_t offset, std::uint64_t length) {
    if (offset > source_->size() || length > source_->size() - offset) {
      refuse("not a NumPy file: it ends in the middle of its header");
    }
    std::string text(static_cast<std::size_t>(length), '\0');
    if (const int error =
            sources_.read(*source_, offset, std::as_writable_bytes(std::span(text)))) {
      throw_errno(ErrorCode::kUnreadable, place_, "", error);
    }
    return text;
  }

  std::string place_;
  std::unique_ptr<const Source> source_;
  Sources& sources_;
};

}  // namespace

Part read_npy(const std::string& path, Sources& sources) {
  return Reader(path, sources.open(path), sources).read(path);
}

}  // namespace stfs
