// The one exception type of stfs. Loading throws it (a checkpoint, a mount, the arguments); serving
// never does: requests return values and errno.
//
// Thread safety: an Error is immutable; the functions may be called from any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace stfs {

// The first group are the rules of the safetensors format, with the names of the reference reader
// (safetensors/src/tensor.rs, SafeTensorError). The second are those of GGUF: its reference has no
// names for them.
enum class ErrorCode {
  kHeaderTooSmall,
  kHeaderTooLarge,
  kInvalidHeaderLength,
  kInvalidHeader,
  kInvalidHeaderDeserialization,
  kInvalidOffset,
  kValidationOverflow,
  kMisalignedSlice,
  kTensorInvalidInfo,
  kMetadataIncompleteBuffer,
  kDuplicateTensor,  // a rule of stfs: the reference keeps one of the two; a rule of GGUF too

  kGgufMagic,
  kGgufVersion,
  kGgufBigEndian,
  kGgufTruncated,  // the header ends early
  kGgufCount,      // a count or a length that is negative, over its limit, or over the bytes left
  kGgufKey,        // an empty key, one that is too long, or one that occurs twice
  kGgufValue,      // a type of a value of metadata that the format does not have
  kGgufAlignment,
  kGgufName,   // a tensor's name of 64 bytes or more
  kGgufShape,  // too many dimensions, a negative one, a size over 64 bits, a row of parts of blocks
  kGgufType,
  kGgufOffset,  // a gap, an overlap, another order, or an offset that is not aligned
  kGgufData,    // the file ends before the last tensor
  kGgufSplit,   // the parts of a split file do not belong together

  kArchive,  // a zip archive that breaks its format, or has no tensors
  kPickle,   // the pickle of a PyTorch file breaks its format, or says more than its length allows

  kQuantized,      // a quantised tensor that is not complete, contradicts itself or is not known
  kDelta,          // a delta that breaks its format, is not supported or has another base
  kAdapter,        // an adapter that breaks its format, is not supported or does not fit the base
  kEdit,           // a line of edits that means nothing, touches nothing or does not fit
  kInvalidIndex,   // an index file that breaks its format, or names a shard outside its directory
  kMissingTensor,  // the index maps a tensor to a shard that does not hold it
  kPathCollision,  // two names have the same shortened path (a 64-bit hash collision)

  kUsage,         // wrong arguments
  kUnreadable,    // the source cannot be read: not permitted, not a regular file, I/O error
  kAbsent,        // no such file or object
  kHidden,        // perhaps so: its server does not tell, or must not be asked
  kMissingShard,  // the index names a file that does not exist
  kMountFailed,
  kDeviceFailed,
};

// The name that messages and `stfs-info check` print: "InvalidOffset".
std::string_view error_name(ErrorCode code);

// The exit status of a command that fails with this error: 1 the checkpoint breaks the format,
// 2 wrong usage, 3 the source cannot be read, 4 the mount failed, 5 the device failed.
int exit_status(ErrorCode code);

// A failure to load. `what()` is one line, "place: subject: rule", followed by "(RuleName)" for an
// error of exit status 1. The place is the file or URL that the error is about; it may be "".
//
// The line is safe to print on a terminal: the constructor escapes the place, the caller escapes
// names in the message (text.h).
class Error : public std::exception {
 public:
  // `message` is "subject: rule" or "rule", without a line end. `system_error` is the errno behind
  // it; 0 where there is none.
  Error(ErrorCode code, std::string_view place, std::string_view message, int system_error = 0);

  ErrorCode code() const { return code_; }
  const std::string& place() const { return place_; }      // as it was given
  const std::string& message() const { return message_; }  // without the place
  int system_error() const { return system_error_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  ErrorCode code_;
  int system_error_;
  std::string place_;
  std::string message_;
  std::string what_;
};

}  // namespace stfs
