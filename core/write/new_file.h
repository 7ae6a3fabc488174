// A new file, or a new directory of files, that gets its name when it is complete, so it appears
// complete or not at all.
//
//   constructor   opens the directory above and accesses names only through its descriptor, so that
//                 directory may be renamed in the meantime. A NewFile begins without a name
//                 (O_TMPFILE) if the file system supports it; otherwise, like every NewDirectory,
//                 with a temporary name
//   commit()      fsync(2), linkat(2) or renameat2(2) to its final name, fsync(2) of the directory
//                 above
//   destructor    without commit(): removes the new file or directory; an existing file of the same
//                 name is unchanged
//
// While a file or directory has a temporary name, the writer holds a lock on it (flock(2)). A
// process that is killed leaves it there unlocked, and the next writer in the same directory
// removes it.
//
// Thread safety: the same thread must construct, commit and destroy it.
#pragma once

#include "core/base/posix.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace stfs {

// The effect of SIGHUP, SIGINT and SIGTERM while an output exists. kRemove: the signals are blocked
// in this thread and in the threads that it starts later. A thread of the output takes them,
// removes whatever has a temporary name, and ends the process by the signal. kNothing: for a
// library, which leaves signals to its program.
enum class SignalCleanup { kRemove, kNothing };

// The common part of files and directories.
class NewOutput {
 public:
  NewOutput(const NewOutput&) = delete;
  NewOutput& operator=(const NewOutput&) = delete;

 protected:
  NewOutput(std::string path, SignalCleanup at_signal);
  ~NewOutput();
  void open_directory_above(const std::string& target);
  // Calls `make` with a new name and locks what it has made. `make` returns a descriptor, or -1
  // with errno set.
  void begin_named(const std::function<int(const char* name)>& make);
  bool is_mine() const;
  void discard();
  void sync_directory_above() const;
  [[noreturn]] void fail(int error) const;

  const std::string path_;  // for messages
  std::string name_;        // in the directory above
  UniqueFd above_;
  UniqueFd fd_;
  std::mutex naming_;      // held while names change; after a signal, until the process ends
  std::string temporary_;  // its temporary name in the directory above; "" if it has none

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

class NewFile : public NewOutput {
 public:
  enum class Begin { kUnnamed, kNamed };
  enum class Existing { kKeep, kReplace };

  // A symbolic link refers to its target. kNamed: does not use O_TMPFILE (for tests). The file has
  // the mode 0666 less the umask. Throws Error kUsage if the file exists and kKeep is given. Throws
  // Error kUnreadable for other failures, for instance if `path` exists and is not a regular file.
  NewFile(const std::string& path, Existing existing, SignalCleanup at_signal,
          Begin begin = Begin::kUnnamed);

  int fd() const { return fd_.get(); }  // open for writing

  // Syncs the file and gives it its name. Call it once. Throws the same errors as the constructor.
  void commit();

 private:
  void begin_unnamed();
  int link(const std::string& name) const;
  int give_name();

  Existing existing_;
};

class NewDirectory : public NewOutput {
 public:
  // Throws Error kUsage if the name exists and is not an empty directory, and Error kUnreadable.
  NewDirectory(const std::string& path, SignalCleanup at_signal);

  // Creates a file in the directory, with the mode 0666 less the umask, and opens it for writing.
  // Throws Error kUnreadable.
  UniqueFd create(const std::string& name);
  // Syncs such a file with fsync(2). Throws Error kUnreadable.
  void finish(const UniqueFd& file, const std::string& name) const;
  // Open a file in the directory for reading, and remove one. Throw Error kUnreadable.
  UniqueFd open(const std::string& name) const;
  void remove(const std::string& name) const;
  void commit();  // syncs it and gives it its name; throws like the constructor
};

}  // namespace stfs
