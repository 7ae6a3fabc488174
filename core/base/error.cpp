#include "core/base/error.h"

#include "core/base/text.h"
#include "core/base/without_queries.h"

#include <cerrno>
#include <cstddef>
#include <iterator>

namespace stfs {

namespace {

struct Row {
  ErrorCode code;
  std::string_view name;
  int exit_status = 1;
};
constexpr Row kRows[] = {
    {ErrorCode::kHeaderTooSmall, "HeaderTooSmall"},
    {ErrorCode::kHeaderTooLarge, "HeaderTooLarge"},
    {ErrorCode::kInvalidHeaderLength, "InvalidHeaderLength"},
    {ErrorCode::kInvalidHeader, "InvalidHeader"},
    {ErrorCode::kInvalidHeaderDeserialization, "InvalidHeaderDeserialization"},
    {ErrorCode::kInvalidOffset, "InvalidOffset"},
    {ErrorCode::kValidationOverflow, "ValidationOverflow"},
    {ErrorCode::kMisalignedSlice, "MisalignedSlice"},
    {ErrorCode::kTensorInvalidInfo, "TensorInvalidInfo"},
    {ErrorCode::kMetadataIncompleteBuffer, "MetadataIncompleteBuffer"},
    {ErrorCode::kDuplicateTensor, "DuplicateTensor"},
    {ErrorCode::kGgufMagic, "GgufMagic"},
    {ErrorCode::kGgufVersion, "GgufVersion"},
    {ErrorCode::kGgufBigEndian, "GgufBigEndian"},
    {ErrorCode::kGgufTruncated, "GgufTruncated"},
    {ErrorCode::kGgufCount, "GgufCount"},
    {ErrorCode::kGgufKey, "GgufKey"},
    {ErrorCode::kGgufValue, "GgufValue"},
    {ErrorCode::kGgufAlignment, "GgufAlignment"},
    {ErrorCode::kGgufName, "GgufName"},
    {ErrorCode::kGgufShape, "GgufShape"},
    {ErrorCode::kGgufType, "GgufType"},
    {ErrorCode::kGgufOffset, "GgufOffset"},
    {ErrorCode::kGgufData, "GgufData"},
    {ErrorCode::kGgufSplit, "GgufSplit"},
    {ErrorCode::kArchive, "Archive"},
    {ErrorCode::kPickle, "Pickle"},
    {ErrorCode::kQuantized, "Quantized"},
    {ErrorCode::kDelta, "Delta"},
    {ErrorCode::kAdapter, "Adapter"},
    {ErrorCode::kEdit, "Edit"},
    {ErrorCode::kInvalidIndex, "InvalidIndex"},
    {ErrorCode::kMissingTensor, "MissingTensor"},
    {ErrorCode::kPathCollision, "PathCollision"},
    {ErrorCode::kUsage, "Usage", 2},
    {ErrorCode::kUnreadable, "Unreadable", 3},
    {ErrorCode::kAbsent, "Absent", 3},
    {ErrorCode::kHidden, "Unreadable", 3},
    {ErrorCode::kMissingShard, "MissingShard", 3},
    {ErrorCode::kMountFailed, "MountFailed", 4},
    {ErrorCode::kDeviceFailed, "DeviceFailed", 5},
};

constexpr bool are_in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].code != static_cast<ErrorCode>(i)) return false;
  }
  return true;
}
static_assert(are_in_order() && kRows[std::size(kRows) - 1].code == ErrorCode::kDeviceFailed,
              "a row for each code, in the order of the enumerators");

}  // namespace

std::string_view error_name(ErrorCode code) { return kRows[static_cast<std::size_t>(code)].name; }

int exit_status(ErrorCode code) { return kRows[static_cast<std::size_t>(code)].exit_status; }

Error::Error(ErrorCode code, std::string_view place, std::string_view message, int system_error)
    : code_(code),
      system_error_(system_error == 0 && code == ErrorCode::kAbsent ? ENOENT : system_error),
      place_(without_queries(place)),
      message_(without_queries(message)) {
  what_ = place.empty() ? message_ : printable(place_).append(": ").append(message_);
  // The name of a broken rule lets a user look the rule up in the reference reader.
  if (exit_status(code) == 1) what_.append(" (").append(error_name(code)).push_back(')');
}

}  // namespace stfs
