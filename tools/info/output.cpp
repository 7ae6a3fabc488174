#include "tools/info/output.h"

#include "core/base/error.h"
#include "core/write/input_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stfs {
namespace {

// Returns the status of standard output if it is a regular file.
std::optional<struct stat> output_file() {
  struct stat status {};
  const bool is_file = ::fstat(STDOUT_FILENO, &status) == 0 && S_ISREG(status.st_mode);
  return is_file ? std::optional(status) : std::nullopt;
}

[[noreturn]] void refuse(const std::string& name) {
  throw Error(ErrorCode::kUsage, name, "a file of the source: choose another name");
}

}  // namespace

bool prints_to_file() { return output_file().has_value(); }

void refuse_source_as_output(const std::string& path) {
  if (const auto file = output_file(); file && leads_to(path, *file)) refuse(kStandardOutput);
}

void refuse_source_as_output(const Sources& sources) {
  const auto file = output_file();
  if (file && is_read(*file, "/proc/self/fd/1", sources)) refuse(kStandardOutput);
}

Output::Output(const Arguments& arguments, const Sources& sources) : name_(arguments.output) {
  if (name_ == "-" || name_ == "/dev/stdout") {
    name_ = kStandardOutput;
    if (::isatty(STDOUT_FILENO) == 1) {
      throw Error(ErrorCode::kUsage, "",
                  "standard output is a terminal: redirect it, or name a file");
    }
    refuse_source_as_output(sources);
    return;
  }
  struct stat status {};
  const bool exists = ::stat(name_.c_str(), &status) == 0;
  // The file may exist, but it cannot be compared with the sources.
  if (!exists && errno == EACCES) throw_errno(ErrorCode::kUnreadable, name_, "", errno);
  if (exists && (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode) || S_ISFIFO(status.st_mode))) {
    stream_ = UniqueFd(::open(name_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (!stream_) throw_errno(ErrorCode::kUnreadable, name_, "", errno);
    // A terminal would obey control sequences in the bytes.
    if (::isatty(stream_.get()) == 1) {
      throw Error(ErrorCode::kUsage, name_, "a terminal: name a file");
    }
    return;
  }
  if (exists && is_read(status, name_, sources)) refuse(name_);
  file_.emplace(name_, arguments.force ? NewFile::Existing::kReplace : NewFile::Existing::kKeep,
                SignalCleanup::kRemove);
}

int Output::fd() const { return file_ ? file_->fd() : stream_ ? stream_.get() : STDOUT_FILENO; }

void Output::commit() {
  if (file_) file_->commit();
}

}  // namespace stfs
