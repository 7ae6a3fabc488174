#include "core/base/error.h"

#include "core/base/text.h"

namespace stfs {

std::string_view error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kHeaderTooSmall:
      return "HeaderTooSmall";
    case ErrorCode::kHeaderTooLarge:
      return "HeaderTooLarge";
    case ErrorCode::kInvalidHeaderLength:
      return "InvalidHeaderLength";
    case ErrorCode::kInvalidHeader:
      return "InvalidHeader";
    case ErrorCode::kInvalidHeaderDeserialization:
      return "InvalidHeaderDeserialization";
    case ErrorCode::kInvalidOffset:
      return "InvalidOffset";
    case ErrorCode::kValidationOverflow:
      return "ValidationOverflow";
    case ErrorCode::kMisalignedSlice:
      return "MisalignedSlice";
    case ErrorCode::kTensorInvalidInfo:
      return "TensorInvalidInfo";
    case ErrorCode::kMetadataIncompleteBuffer:
      return "MetadataIncompleteBuffer";
    case ErrorCode::kDuplicateTensor:
      return "DuplicateTensor";
    case ErrorCode::kGgufMagic:
      return "GgufMagic";
    case ErrorCode::kGgufVersion:
      return "GgufVersion";
    case ErrorCode::kGgufBigEndian:
      return "GgufBigEndian";
    case ErrorCode::kGgufTruncated:
      return "GgufTruncated";
    case ErrorCode::kGgufCount:
      return "GgufCount";
    case ErrorCode::kGgufKey:
      return "GgufKey";
    case ErrorCode::kGgufValue:
      return "GgufValue";
    case ErrorCode::kGgufAlignment:
      return "GgufAlignment";
    case ErrorCode::kGgufName:
      return "GgufName";
    case ErrorCode::kGgufShape:
      return "GgufShape";
    case ErrorCode::kGgufType:
      return "GgufType";
    case ErrorCode::kGgufOffset:
      return "GgufOffset";
    case ErrorCode::kGgufData:
      return "GgufData";
    case ErrorCode::kGgufSplit:
      return "GgufSplit";
    case ErrorCode::kQuantized:
      return "Quantized";
    case ErrorCode::kInvalidIndex:
      return "InvalidIndex";
    case ErrorCode::kMissingTensor:
      return "MissingTensor";
    case ErrorCode::kPathCollision:
      return "PathCollision";
    case ErrorCode::kUsage:
      return "Usage";
    case ErrorCode::kUnreadable:
    case ErrorCode::kHidden:
      return "Unreadable";
    case ErrorCode::kAbsent:
      return "Absent";
    case ErrorCode::kMissingShard:
      return "MissingShard";
    case ErrorCode::kMountFailed:
      return "MountFailed";
    case ErrorCode::kDeviceFailed:
      return "DeviceFailed";
  }
  return "Unknown";
}

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kUnreadable:
    case ErrorCode::kAbsent:
    case ErrorCode::kHidden:
    case ErrorCode::kMissingShard:
      return 3;
    case ErrorCode::kMountFailed:
      return 4;
    case ErrorCode::kDeviceFailed:
      return 5;
    default:
      return 1;
  }
}

Error::Error(ErrorCode code, std::string_view place, std::string_view message)
    : code_(code), place_(place), message_(message) {
  what_ = place.empty() ? message_ : printable(place).append(": ").append(message_);
  // A broken rule of the format is named, so that a user can look it up in the reference reader.
  if (exit_status(code) == 1) what_.append(" (").append(error_name(code)).push_back(')');
}

}  // namespace stfs
