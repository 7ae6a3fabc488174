// A file that gets its name when it is complete; it may replace an older file of that name, at
// once.
//
//   constructor   creates a file without a name (O_TMPFILE). Without O_TMPFILE: a file with a
//                 temporary name, which SIGHUP, SIGINT and SIGTERM unlink
//   commit()      fsync(2), linkat(2) to a temporary name, renameat2(2) to its own, and then
//                 fsync(2) of the directory
//   destructor    without commit(): removes the file; the target is unchanged
//
// A process that dies earlier leaves no file behind; without O_TMPFILE, SIGKILL leaves one.
//
// Thread safety: one thread constructs, commits and destroys it.
#pragma once

#include "core/base/posix.h"

#include <memory>
#include <string>

namespace stfs {

class AtSignal;

class NewFile {
 public:
  enum class Begin { kUnnamed, kNamed };
  enum class Existing { kKeep, kReplace };

  // A symbolic link stands for the file that it leads to. kNamed: does not use O_TMPFILE (for
  // tests). Throws Error kUsage when there is a file and it is to be kept; kUnreadable, also when
  // `path` exists and is not a regular file.
  NewFile(const std::string& path, Existing existing, Begin begin = Begin::kUnnamed);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int fd() const { return fd_.get(); }  // open for writing

  // Gives the file its name, and the mode 0666 less the umask. Call it once. Throws as the
  // constructor does.
  void commit();

 private:
  void begin_unnamed();
  void begin_named();
  void link();
  int rename();
  void discard();
  [[noreturn]] void fail(int error) const;

  std::string path_;  // for messages
  Existing existing_;
  std::string name_;       // of the target in the directory
  std::string temporary_;  // of our file in the directory; "" while it has no name
  UniqueFd directory_;
  UniqueFd fd_;
  std::unique_ptr<AtSignal> at_signal_;
};

}  // namespace stfs
