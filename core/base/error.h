// The one exception of stfs. It is thrown while something is loaded (a checkpoint, a mount, the
// arguments) and never while requests are served: requests answer with values and errno.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace stfs {

// What went wrong. The first group are the rules of the safetensors format; they carry the names
// that the reference reader (safetensors/src/tensor.rs, SafeTensorError) gives them.
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
  kDuplicateTensor,  // ours: the reference keeps one of the two

  kInvalidIndex,   // an index file that breaks its format, or names a shard outside its directory
  kMissingTensor,  // the index maps a tensor to a shard that does not hold it
  kPathCollision,  // two names whose shortened paths are equal (a 64-bit hash collision)

  kUsage,         // wrong arguments
  kUnreadable,    // the source cannot be read: absent, not permitted, not a regular file, I/O error
  kMissingShard,  // the index names a file that is not there
  kMountFailed,
  kDeviceFailed,
};

// The name that messages and `stfs-info check` print: "InvalidOffset".
std::string_view error_name(ErrorCode code);

// The exit status of a command that ends with this error: 1 the checkpoint breaks the format,
// 2 wrong usage, 3 the source cannot be read, 4 the mount failed, 5 the device failed.
int exit_status(ErrorCode code);

// A failure to load. `what()` is one line, `place: subject: rule`, with the name of the rule in
// brackets behind it when it is one of a checkpoint's. It is safe for a terminal: the place is
// escaped here, and whoever makes the message escapes the names in it (see text.h).
class Error : public std::exception {
 public:
  // `message` is "subject: rule" (or "rule" alone), without the place and without a line end.
  Error(ErrorCode code, std::string_view place, std::string_view message);

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }  // without the place
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
  std::string what_;
};

}  // namespace stfs
