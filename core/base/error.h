// The one exception type of stfs. The code that loads a checkpoint, mounts, or reads arguments
// throws it. The code that serves requests never does: it returns values and errno.
//
// Thread safety: an Error is immutable; the functions may be called from any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace stfs {

// The first group consists of the rules of the safetensors format, with the names of the reference
// reader (safetensors/src/tensor.rs, SafeTensorError). The second group consists of the rules of
// GGUF, which have no names in its reference reader.
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
  // A rule of stfs, because the reference reader keeps one of the two tensors. Also a rule of GGUF.
  kDuplicateTensor,

  kGgufMagic,
  kGgufVersion,
  kGgufBigEndian,
  kGgufTruncated,  // the header ends early
  kGgufCount,      // a count or a length is negative, over its limit, or over the bytes left
  kGgufKey,        // a key is empty or too long, or occurs twice
  kGgufValue,      // a value of the metadata has a type that the format does not have
  kGgufAlignment,
  kGgufName,  // a tensor's name has more than 127 bytes
  // A tensor has too many dimensions, a negative dimension, a size over 64 bits, or rows that are
  // not whole blocks.
  kGgufShape,
  kGgufType,
  kGgufOffset,  // a gap, an overlap, another order, or an offset that is not aligned
  kGgufData,    // the file ends before the end of the last tensor
  kGgufSplit,   // the parts of a split file do not belong together

  kArchive,  // a zip archive that breaks its format, or has no tensors
  kPickle,   // the pickle of a PyTorch file breaks its format, or needs too much memory or time

  kQuantized,      // a quantised tensor is incomplete, contradicts itself or is not supported
  kDelta,          // a delta breaks its format, is not supported or has another base
  kAdapter,        // an adapter breaks its format, is not supported or does not fit the base
  kEdit,           // a line of edits is not a valid command, matches no tensor, or does not fit
  kInvalidIndex,   // an index file breaks its format, or names a shard outside its directory
  kMissingTensor,  // the index maps a tensor to a shard that does not hold it
  kPathCollision,  // two names have the same shortened path (a 64-bit hash collision)

  kUsage,       // wrong arguments
  kUnreadable,  // the source cannot be read: not permitted, not a regular file, I/O error
  kAbsent,      // no such file or object
  // The file or object may be absent: the server does not say whether it exists, or stfs must not
  // ask the server, or a name in a directory is not a regular file.
  kHidden,
  kMissingShard,  // the index names a file that does not exist
  kMountFailed,
  kDeviceFailed,
};

// Returns the name that messages and `stfs-info check` print, such as "InvalidOffset".
std::string_view error_name(ErrorCode code);

// Returns the exit status of a command that fails with this error: 1 if the checkpoint breaks its
// format, 2 for wrong usage, 3 if the source cannot be read, 4 if the mount failed, 5 if the device
// failed.
int exit_status(ErrorCode code);

// A failure to load. `what()` is one line, "place: subject: rule", followed by "(RuleName)" if the
// exit status is 1. The place is the file or URL that the error is about; it may be "".
//
// The line is safe to print on a terminal, because the constructor escapes the place, and the
// caller has to escape the names in the message (text.h). The constructor also removes the secrets
// of URLs from both (without_queries.h).
class Error : public std::exception {
 public:
  // `message` is "subject: rule" or "rule", without a line end. `system_error` is the errno that
  // caused the failure, or 0 if none did. For kAbsent, 0 becomes ENOENT.
  Error(ErrorCode code, std::string_view place, std::string_view message, int system_error = 0);

  ErrorCode code() const { return code_; }
  const std::string& place() const { return place_; }      // not escaped, without secrets of URLs
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
