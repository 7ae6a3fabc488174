// A file that is complete when it gets its name. Whatever ends the process before leaves nothing
// behind, except SIGKILL where the file system has no files without a name.
//
//   begun       a file without a name (O_TMPFILE); where the file system has none, a file with a
//               temporary name, which SIGHUP, SIGINT and SIGTERM take away
//   commit()    the bytes are on the disk; linked under a temporary name; renamed over the target;
//               the directory is on the disk
//   destroyed   without commit(): nothing is left, and the target is what it was
//
// Thread safety: one call at a time. The thread that makes it commits and destroys it.
#pragma once

#include "core/base/posix.h"

#include <memory>
#include <string>

namespace stfs {

class UnlinkAtSignal;

class NewFile {
 public:
  enum class Begin { kUnnamed, kNamed };

  // kNamed begins as on a file system that has no O_TMPFILE. Throws Error kUnreadable, also when
  // `path` is there and no regular file.
  explicit NewFile(std::string path, Begin begin = Begin::kUnnamed);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int fd() const { return fd_.get(); }  // open for writing

  // Gives the file its name and the mode that the umask leaves. Once. Throws Error kUnreadable.
  void commit();

 private:
  void begin_unnamed();
  void begin_named();
  void link();
  void discard();
  [[noreturn]] void fail(int error) const;

  std::string path_;       // for messages
  std::string name_;       // in the directory
  std::string temporary_;  // the name there that is ours; empty when there is none
  UniqueFd directory_;
  UniqueFd fd_;
  std::unique_ptr<UnlinkAtSignal> at_signal_;
};

}  // namespace stfs
