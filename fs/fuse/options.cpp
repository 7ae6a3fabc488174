#include "fs/fuse/options.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/opened/open_rows.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

[[noreturn]] void refuse(std::string_view rule) { throw Error(ErrorCode::kUsage, "", rule); }

unsigned parse_number(std::string_view text, int base, unsigned least, unsigned most,
                      std::string_view rule) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    refuse(rule);
  }
  return value;
}

// Finds a user or group by name (getpwnam_r(3), getgrnam_r(3)). The entry points into `buffer`.
template <class Entry, class Find>
std::optional<Entry> find_entry(Find find, const std::string& name, std::vector<char>& buffer) {
  constexpr std::size_t kMost = std::size_t{1} << 24;  // a group has many members
  Entry entry{};
  Entry* found = nullptr;
  buffer.resize(4096);
  int error = 0;
  while ((error = find(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) == ERANGE &&
         buffer.size() < kMost) {
    buffer.resize(buffer.size() * 2);
  }
  return found != nullptr ? std::optional(entry) : std::nullopt;
}

// Parses the number of a user or group. `what` is "user" or "group".
unsigned parse_id(const std::string& text, const std::string& what) {
  constexpr unsigned kMost = std::numeric_limits<unsigned>::max() - 1;  // -1 means no id
  if (text.empty()) refuse("expected the name or the number of a " + what);
  if (text.find_first_not_of("-0123456789") != std::string::npos) {
    refuse("no such " + what + ": expected a name that this system knows, or a number");
  }
  return parse_number(text, 10, 0, kMost, "expected a number from 0 to " + std::to_string(kMost));
}
uid_t parse_user(const std::string& text) {
  std::vector<char> buffer;
  const auto user = find_entry<passwd>(::getpwnam_r, text, buffer);
  return user ? user->pw_uid : parse_id(text, "user");
}
gid_t parse_group(const std::string& text) {
  std::vector<char> buffer;
  const auto found = find_entry<group>(::getgrnam_r, text, buffer);
  return found ? found->gr_gid : parse_id(text, "group");
}

Options& of(void* arguments) { return *static_cast<Options*>(arguments); }

// The mount options (-o). A row without a setter documents an option that is passed to libfuse or
// ignored.
constexpr std::array kOwnMountOptions = {
    OptionRow{
        .flags = "views",
        .argument = "hidden|visible|off",
        .value = Value::kChoice,
        .set =
            [](void* to, const std::string& value) {
              of(to).control = value == "hidden"    ? ControlDirectory::kHidden
                               : value == "visible" ? ControlDirectory::kVisible
                                                    : ControlDirectory::kOff;
            },
        .help = "the directory .stfs: reachable by its path (the default), listed in the root, "
                "or absent",
        .man = "Say whether the directory `.stfs` exists. "
               "With `hidden`, the default, it can be reached by its path, and the root does not "
               "list it: programs that walk the mount see each tensor once. "
               "With `visible` the root lists it. "
               "With `off` it does not exist."},
    OptionRow{
        .flags = "page_cache",
        .argument = "kernel|direct",
        .value = Value::kChoice,
        .set = [](void* to, const std::string& value) { of(to).direct = value == "direct"; },
        .help = "keep pages in the kernel's cache (the default), or read around it",
        .man = "With `kernel`, the default, the kernel keeps pages in its page cache, and a second "
               "read does not reach `stfs`. "
               "For root's mounts the kernel reads at least 2 MiB ahead. "
               "With `direct` each read goes to the source, whose pages the kernel caches anyway. "
               "This saves memory. "
               "It is faster for one pass over large tensors, and slower for small reads."},
    OptionRow{.flags = "supervise",
              .set = set<&Options::supervise>,
              .help = "restart the server if it crashes; open files survive",
              .man = "Let a second process, the supervisor, hold the mount and restart the serving "
                     "process when it dies. "
                     "Readers wait some milliseconds and see no error; their open files stay open. "
                     "A request that kills two processes in a row fails with `EIO`. "
                     "The supervisor never gives up a mount that has served once; the pause before "
                     "the next process grows to one second. "
                     "Each death is logged in one line. "
                     "This option needs Linux 6.9. "
                     "On an older kernel `stfs` prints a warning and makes an ordinary mount."},
    OptionRow{.flags = "prefetch",
              .argument = "all|none",
              .value = Value::kChoice,
              .set = [](void* to, const std::string& value) { of(to).prefetch = value == "all"; },
              .help = "fetch all of a remote source, or only what is read (the default)",
              .man = "With `all`, fetch all bytes of remote sources once the mount answers. "
                     "Readers go first. "
                     "With `none`, the default, fetch only the bytes that are read."},
    OptionRow{.flags = "threads",
              .argument = "N",
              .value = Value::kNumber,
              .set = set<&Options::threads>,
              .help = "maximum requests answered at the same time",
              .man = "Answer at most <n> requests at the same time, from 1 to 1024; 64 by default. "
                     "Threads beyond one for each processor start while others wait for a slow "
                     "source.",
              .least = 1,
              .most = 1024},
    OptionRow{.flags = "uid",
              .argument = "USER",
              .set = [](void* to, const std::string& value) { of(to).uid = parse_user(value); },
              .help = "the owner of the files, by name or number",
              .man = "The owner of the files, by name or number. "
                     "The default is the user who mounts."},
    OptionRow{.flags = "gid",
              .argument = "GROUP",
              .set = [](void* to, const std::string& value) { of(to).gid = parse_group(value); },
              .help = "the group of the files, by name or number",
              .man = "The group of the files, by name or number. "
                     "The default is the group of the user who mounts."},
    OptionRow{.flags = "umask",
              .argument = "OCTAL",
              .set =
                  [](void* to, const std::string& value) {
                    of(to).umask =
                        parse_number(value, 8, 0, 0777, "expected an octal number from 0 to 777");
                  },
              .help = "permissions to take away",
              .man = "Permissions to take away, in octal. "
                     "Without it files have mode 0444 and directories 0555."},
    OptionRow{.flags = "fsname",
              .argument = "NAME",
              .set = set<&Options::fsname>,
              .help = "the name shown as the source",
              .man = "The name that mount(8) and df(1) show as the source, instead of the path of "
                     "the first source."},
    OptionRow{.flags = "max_read",
              .argument = "N",
              .value = Value::kNumber,
              .set =
                  [](void* to, const std::string& value) {
                    set<&Options::max_read>(to, value);
                    of(to).mount_options.push_back("max_read=" + value);
                  },
              .help = "the largest read request in bytes",
              .man = "The largest read request in bytes, at least 4096.",
              .least = 4096,
              .most = 1U << 30},
    OptionRow{.flags = "allow_other",
              .help = "let other users see the mount",
              .man = "Let other users see the mount. "
                     "For a user other than root, this needs the line `user_allow_other` in "
                     "`/etc/fuse.conf`."},
    OptionRow{.flags = "noexec",
              .help = "forbid running programs from the mount",
              .man = "Forbid running programs from the mount."},
    OptionRow{.flags = "ro,default_permissions",
              .help = "always set, as are nosuid and nodev",
              .man = "Always set, as are `nosuid` and `nodev`."},
};

Layers& layers_of(void* arguments) { return of(arguments).layers; }

constexpr std::array kMountOptions =
    joined(joined(joined(kOwnMountOptions, missing_row<&Options::allow_missing>("", true)),
                  layer_rows<layers_of>("", true)),
           source_rows<&Options::remote>("", "", true));

// Returns true for options of mount(8) and fstab(5) that have no effect: the mount is always
// read-only, nosuid and nodev, and the others are for programs that read fstab.
bool is_ignored(std::string_view key) {
  constexpr std::array kIgnored{"ro",          "rw",
                                "suid",        "nosuid",
                                "dev",         "nodev",
                                "defaults",    "auto",
                                "noauto",      "user",
                                "nouser",      "users",
                                "owner",       "group",
                                "_netdev",     "nofail",
                                "nonempty",    "atime",
                                "relatime",    "norelatime",
                                "strictatime", "diratime",
                                "nodiratime",  "lazytime",
                                "nolazytime",  "iversion",
                                "noiversion",  "mand",
                                "nomand",      "loud",
                                "silent",      "subtype",
                                "comment",     "default_permissions"};
  const auto is_key = [&](std::string_view name) { return same_option(name, key); };
  return std::ranges::any_of(kIgnored, is_key) || key.starts_with("x-") || key.starts_with("X-");
}

// Returns true for options of the mount itself, which a server cannot set if the mount is handed
// over to it. `ro` is not one of them, because every server refuses writes.
bool is_of_the_mount(std::string_view key) {
  constexpr std::array kOfTheMount{"fsname", "subtype", "max_read", "default_permissions",
                                   "nosuid", "suid",    "nodev",    "dev"};
  return std::ranges::any_of(kOfTheMount,
                             [&](std::string_view name) { return same_option(name, key); });
}

// An option that libfuse 3 accepts after -o (fuse_session_new(3)), for itself, for fusermount3(1)
// or for mount(2). libfuse refuses all others, and older versions know fewer.
struct FuseOption {
  std::string_view key;
  std::string_view argument = {};  // as in OptionRow
  Value value = Value::kText;
};
constexpr std::array kFuseOptions = {
    FuseOption{"allow_other"},
    FuseOption{"allow_root"},
    FuseOption{"auto_unmount"},
    FuseOption{"debug"},
    FuseOption{"blkdev"},
    FuseOption{"blksize", "N", Value::kNumber},
    FuseOption{"context", "CONTEXT"},
    FuseOption{"fscontext", "CONTEXT"},
    FuseOption{"defcontext", "CONTEXT"},
    FuseOption{"rootcontext", "CONTEXT"},
    FuseOption{"exec"},
    FuseOption{"noexec"},
    FuseOption{"async"},
    FuseOption{"sync"},
    FuseOption{"dirsync"},
    FuseOption{"noatime"},
    FuseOption{"nostrictatime"},
    FuseOption{"symfollow"},
    FuseOption{"nosymfollow"},
    FuseOption{"io_uring"},
    FuseOption{"io_uring_q_depth", "N", Value::kNumber},
};

// Returns the rule for an option that neither stfs nor libfuse knows.
std::string unknown_option(std::string_view key) {
  std::vector<std::string_view> known;
  for (const OptionRow& row : kMountOptions) {
    for (const std::string_view name : parts_of(row.flags, ',')) known.push_back(name);
  }
  for (const FuseOption& option : kFuseOptions) known.push_back(option.key);
  return "unknown option" + did_you_mean(similar_word(key, known)) +
         ": stfs --help lists the options";
}

// Applies "key" or "key=value".
void apply(Options& options, const std::string& option) {
  const std::size_t equals = option.find('=');
  const std::string key = option.substr(0, equals);
  const std::string typed = equals == std::string::npos ? "" : option.substr(equals + 1);
  const bool has_value = equals != std::string::npos;
  const auto is_key = [&](std::string_view name) { return same_option(name, key); };
  const auto note = [&](std::string_view name) {
    if (options.mount_only_option.empty()) options.mount_only_option = name;
  };
  try {
    if (is_of_the_mount(key)) note(key);
    if (set_word(kMountOptions, option, &options)) return;
    if (key == "remount") {
      refuse("a mounted checkpoint does not change: unmount it and mount it again");
    }
    if (is_ignored(key)) return;
    const auto fuse = std::ranges::find_if(kFuseOptions, is_key, &FuseOption::key);
    if (fuse == kFuseOptions.end()) refuse(unknown_option(key));
    check_presence(fuse->key, fuse->argument, has_value);
    if (fuse->value == Value::kNumber) {
      parse_number(typed, 10, 0, std::numeric_limits<unsigned>::max(), "expected a number");
    }
    if (fuse->key != "debug") note(fuse->key);
    options.mount_options.push_back(std::string(fuse->key) + (has_value ? "=" + typed : ""));
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, "-o " + option, error.message());
  }
}

// Splits "a,b=c\,d" at commas without a backslash, and removes the backslashes.
void apply_list(void* arguments, const std::string& list) {
  std::vector<std::string> out(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '\\' && i + 1 < list.size()) {
      out.back() += list[++i];
    } else if (list[i] == ',') {
      out.emplace_back();
    } else {
      out.back() += list[i];
    }
  }
  std::erase(out, "");
  for (const std::string& option : out) apply(of(arguments), option);
}

constexpr std::array kForms = {VerbRow{.name = "mount", .help = "mount a checkpoint"},
                               VerbRow{.name = "unmount", .help = "unmount it"}};

constexpr std::array kOptions = {
    OptionRow{.flags = "-f,--foreground",
              .verbs = "mount",
              .set = set<&Options::foreground>,
              .help = "stay in the foreground; log to standard error",
              .man = "Stay in the foreground, and log to standard error instead of syslog(3)."},
    OptionRow{.flags = "-o",
              .verbs = "mount",
              .argument = "OPTION[,OPTION...]",
              .value = Value::kList,
              .set = apply_list,
              .help = "mount options, see below",
              .man = "Mount options, see below. "
                     "This option may be given more than once."},
    OptionRow{
        .flags = "-u,--unmount",
        .verbs = "unmount!",
        .set = [](void* to, const std::string&) { of(to).command = Options::Command::kUnmount; },
        .help = "unmount",
        .man = "Unmount <mountpoint>. "
               "This also clears the dead mount that a killed daemon leaves behind."},
    OptionRow{.flags = "-z,--lazy",
              .verbs = "unmount",
              .set = set<&Options::lazy>,
              .help = "with -u: detach at once, end with the last open file",
              .man =
                  "With `-u`: detach a mount from the directory tree at once, even while it is in "
                  "use. "
                  "It goes away when its last open file is closed."},
    OptionRow{.flags = "SOURCE...",
              .verbs = "mount!",
              .value = Value::kSource,
              .help = "a .safetensors or .gguf file, an index of shards, a directory with one, a "
                      "mount of stfs, or a URL (https, s3, hf); several make one namespace"},
    OptionRow{
        .flags = "MOUNTPOINT",
        .verbs = "mount! unmount!",
        .value = Value::kMountpoint,
        .help = "a directory; or /dev/fd/N, a mount that another process made and hands over"},
};

constexpr CommandRow kCommand = {
    .name = "stfs",
    .help = "Mount a safetensors checkpoint: every tensor is a file.",
    .notes =
        "Also accepted: allow_root, auto_unmount, blkdev, blksize=, context= and its kin,\n"
        "debug, exec, noatime, sync, symfollow and others of mount.fuse3(8); the words of\n"
        "fstab(5) are ignored. - and _ are the same in the names of options.\n"
        "The mount is always read-only, nosuid, nodev and default_permissions.\n\n"
        "Exit status: 0 done, 1 the checkpoint breaks the format, 2 wrong usage,\n"
        "3 the source cannot be read, 4 the mount failed.\n",
    .has_verbs = false,
    .verbs = kForms,
    .options = kOptions,
    .list = kMountOptions};

[[noreturn]] void refuse_usage(const std::string& rule) {
  throw Error(ErrorCode::kUsage, "", rule + " (try stfs --help)");
}

// Returns the N of "/dev/fd/N", or nullopt for any other mountpoint.
std::optional<int> descriptor_of(const std::string& mountpoint) {
  constexpr std::string_view kPrefix = "/dev/fd/";
  if (!mountpoint.starts_with(kPrefix)) return std::nullopt;
  constexpr unsigned kFirst = 3;  // after standard input, output and error
  return static_cast<int>(
      parse_number(std::string_view(mountpoint).substr(kPrefix.size()), 10, kFirst, INT_MAX,
                   "MOUNTPOINT " + in_quotes(mountpoint) +
                       ": expected a descriptor of /dev/fuse, a number of at least 3"));
}

void check_handed_over(const Options& options) {
  if (options.mount_only_option.empty()) return;
  throw Error(
      ErrorCode::kUsage, "-o " + options.mount_only_option,
      options.mountpoint + " is mounted already: the process that mounted it sets this option");
}

void check_unmount(const Options& options, const std::vector<std::string>& paths) {
  if (paths.empty()) refuse_usage("-u: MOUNTPOINT is expected: stfs -u MOUNTPOINT");
  if (paths.size() > 1) {
    refuse_usage("-u takes only one MOUNTPOINT, so " + in_quotes(paths[1]) + " is one too many");
  }
  if (options.foreground) refuse_usage("-f is for mounting, and -u unmounts");
  if (descriptor_of(paths[0])) {
    refuse_usage("-u " + in_quotes(paths[0]) + ": name the directory where it is mounted");
  }
}

void check_mount(const Options& options, const std::vector<std::string>& paths) {
  if (options.lazy) refuse_usage("-z is for -u: stfs -u -z MOUNTPOINT");
  if (paths.empty()) refuse_usage("SOURCE and MOUNTPOINT are expected: stfs SOURCE MOUNTPOINT");
  if (std::ranges::find(paths, "") < paths.end() - 1) {
    refuse_usage("SOURCE \"\": expected a name, but this one is empty");
  }
  if (paths.size() == 1) {
    refuse_usage("MOUNTPOINT is expected: stfs " + printable(paths[0]) + " MOUNTPOINT");
  }
}

}  // namespace

bool Options::allows_other_users() const {
  return descriptor || std::ranges::find(mount_options, "allow_other") != mount_options.end();
}

const CommandRow& mount_command() { return kCommand; }

Options parse_options(int argc, const char* const* argv) {
  Options options;
  Parsed parsed = parse_command(kCommand, {argv + 1, argv + argc}, &options);
  if (parsed.action != Parsed::Action::kRun) {
    options.command = parsed.action == Parsed::Action::kHelp ? Options::Command::kHelp
                                                             : Options::Command::kVersion;
    return options;
  }
  std::vector<std::string>& paths = parsed.operands;
  if (options.command == Options::Command::kUnmount) {
    check_unmount(options, paths);
  } else {
    check_mount(options, paths);
  }
  options.mountpoint = std::move(paths.back());
  paths.pop_back();
  options.descriptor = descriptor_of(options.mountpoint);
  if (options.descriptor) check_handed_over(options);
  options.sources = std::move(paths);
  return options;
}

}  // namespace stfs
